// Command consumer reads a PodResources socket with the client that Kubernetes itself keeps for it, which several
// device plugins and CNI plugins call too, and prints the answers as one line of JSON. It goes by the constants of
// Kubernetes' own tests: ten seconds, and answers of up to 16 MiB.
//
//	consumer unix:///var/lib/kubelet/pod-resources/kubelet.sock
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
)

const (
	limit   = 10 * time.Second
	maxSize = 16 << 20
)

// told is what is printed. What the API calls by other names is under the names of Go's fields.
type told struct {
	Pods        []*v1.PodResources
	Got         []*v1.PodResources // by Get, each of Pods
	Allocatable *v1.AllocatableResourcesResponse
	Old         []*v1alpha1.PodResources
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: consumer unix:///PATH")
		os.Exit(2)
	}
	answer, err := read(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func read(endpoint string) (told, error) {
	var t told
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client, conn, err := podresources.GetV1Client(ctx, endpoint, limit, maxSize)
	if err != nil {
		return t, err
	}
	defer conn.Close()
	old, oldConn, err := podresources.GetV1alpha1Client(ctx, endpoint, limit, maxSize)
	if err != nil {
		return t, err
	}
	defer oldConn.Close()
	list, err := client.List(ctx, &v1.ListPodResourcesRequest{})
	if err != nil {
		return t, err
	}
	t.Pods = list.PodResources
	for _, p := range t.Pods {
		one, err := client.Get(ctx, &v1.GetPodResourcesRequest{PodNamespace: p.Namespace, PodName: p.Name})
		if err != nil {
			return t, err
		}
		t.Got = append(t.Got, one.PodResources)
	}
	t.Allocatable, err = client.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	if err != nil {
		return t, err
	}
	oldList, err := old.List(ctx, &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		return t, err
	}
	t.Old = oldList.PodResources
	return t, nil
}

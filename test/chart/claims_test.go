//go:build e2e

package chart

import (
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/node"
)

// The service account's rights suffice to move a resource to Dynamic Resource Allocation and back, while a pod runs with one of its devices.
func TestChart_ResourceMovedToClaimsAndBack_PodRunsOn(t *testing.T) {
	h := start(t)
	first, taken := h.runs("first")
	class := &resourceapi.DeviceClass{}
	h.must(yaml.UnmarshalStrict([]byte(h.devmgrd("deviceclass", node.SampleResource)), class))
	classes := h.Client().ResourceV1().DeviceClasses()
	_, err := classes.Create(h.ctx, class, metav1.CreateOptions{})
	h.must(err)

	h.upgrade(`--set-json=config.dra.resources=["` + node.SampleResource + `"]`)
	h.shows(-1)
	if _, got := h.runs("claims"); got == taken {
		t.Errorf("both pods have %s", got)
	}
	claims, err := h.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(h.ctx, metav1.ListOptions{})
	h.must(err)
	if len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil || len(claims.Items[0].Status.ReservedFor) != 1 {
		t.Errorf("the claims are %+v", claims.Items)
	}
	h.nothingForbidden()
	log, err := os.ReadFile(h.Kubelet.LogPath())
	h.must(err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "Error when handling create event") { // of a file in plugins_registry, a mount of its own in devmgrd's pod
			t.Errorf("the kubelet has logged: %s", line)
		}
	}
	h.must(h.Delete(h.soon(), "claims"))

	h.upgrade("--set-json=config.dra.resources=[]")
	h.shows(2)
	h.until("no slice is left", func() bool {
		all, err := h.Client().ResourceV1().ResourceSlices().List(h.ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	h.nothingForbidden()
	h.runsOn(first)
}

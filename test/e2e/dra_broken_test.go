//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// An object is one of the API server's, as JSON has it.
type object = map[string]any

// A liar stands between devmgrd and the API server, and changes what devmgrd reads of pods.
type liar struct {
	change atomic.Pointer[func(object)]
}

// lie changes an object, or each object of a list or of an event.
func (l *liar) lie(o object) {
	if items, is := o["items"].([]any); is {
		for _, item := range items {
			l.lie(item.(object))
		}
		return
	}
	if inner, is := o["object"].(object); is {
		l.lie(inner)
		return
	}
	if change := l.change.Load(); change != nil {
		(*change)(o)
	}
}

// serve listens until the test ends, and returns the path of a kubeconfig for devmgrd.
func (l *liar) serve(t *testing.T, kubelets string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubelets)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if r.In.Method == http.MethodGet {
				r.Out.Header.Set("Accept", "application/json")
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		ModifyResponse: func(answer *http.Response) error {
			path := answer.Request.URL.Path
			if answer.Request.Method != http.MethodGet || answer.StatusCode != http.StatusOK || !strings.Contains(path, "/pods") {
				return nil
			}
			in, out := answer.Body, (*io.PipeWriter)(nil)
			answer.Body, out = io.Pipe()
			answer.ContentLength = -1
			answer.Header.Del("Content-Length")
			go func() {
				defer in.Close()
				decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
				for {
					var o object
					err := decoder.Decode(&o)
					if err == nil {
						l.lie(o)
						err = encoder.Encode(o)
					}
					if err != nil {
						out.CloseWithError(err)
						return
					}
				}
			}()
			return nil
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}],
"clusters":[{"name":"c","cluster":{"server":"http://%s"}}]}`, listener.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// at returns what is at a path of an object; nil: nothing.
func at(o any, path ...string) any {
	for _, key := range path {
		inner, _ := o.(object)
		o = inner[key]
	}
	return o
}

// each calls f for each object of a list at a path.
func each(o object, f func(object), path ...string) {
	list, _ := at(o, path...).([]any)
	for _, one := range list {
		f(one.(object))
	}
}

// containers calls f for all containers of a pod.
func containers(o object, f func(object)) {
	each(o, f, "spec", "containers")
	each(o, f, "spec", "initContainers")
}

// devmgrd reads something wrong of pods, one thing at a time: that is what a way to a device looks like that it does not know. Each container has the
// devices that the kubelet's mapping names, or is not created.
func TestDRA_ReadsItWrong_ContainersAreRightOrRefused(t *testing.T) {
	r := start(t)
	l := &liar{}
	r.class(gpu)
	r.restartedWith("--set", "dra.resources="+gpu, "--set", "dra.hold=1s", "--set", "nodeName="+r.NodeName(), "--set", "kubernetes.kubeconfig="+l.serve(t, r.NodeKubeconfig()))
	r.offered(gpu, 16)
	r.until("the kubelet has registered the driver", func() bool {
		log, err := os.ReadFile(r.Devmgrd.LogPath())
		return err == nil && strings.Contains(string(log), "kubelet has registered the DRA driver")
	})
	n := 0
	request := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpuClass}}
	}
	drop := func(o object, path ...string) {
		if inner, is := at(o, path[:len(path)-1]...).(object); is {
			delete(inner, path[len(path)-1])
		}
	}
	for name, change := range map[string]func(object){
		"nothing is wrong":                  func(object) {},
		"the scheduler's claim is not seen": func(o object) { drop(o, "status", "extendedResourceClaimStatus") },
		"another container has the request": func(o object) {
			each(o, func(m object) { m["containerName"] = "side" }, "status", "extendedResourceClaimStatus", "requestMappings")
		},
		"containers use no claims": func(o object) { containers(o, func(c object) { drop(c, "resources", "claims") }) },
		"containers use whole claims": func(o object) {
			containers(o, func(c object) { each(c, func(use object) { delete(use, "request") }, "resources", "claims") })
		},
		"containers use other requests": func(o object) {
			containers(o, func(c object) {
				each(c, func(use object) {
					if use["request"] != nil {
						use["request"] = "b"
					}
				}, "resources", "claims")
			})
		},
		"side containers are not seen": func(o object) {
			if list, is := at(o, "spec", "containers").([]any); is {
				o["spec"].(object)["containers"] = list[:1]
			}
		},
		"claims of templates are not seen": func(o object) { drop(o, "status", "resourceClaimStatuses") },
	} {
		t.Run(name, func(t *testing.T) {
			r := r.in(t)
			l.change.Store(&change)
			r.makeClaim("two", request("a"), request("b"))
			template := claiming("template", "")
			template.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "mine", ResourceClaimTemplateName: &[]string{"one"}[0]}
			r.template("one", request("a"))
			pods := map[string]*corev1.Pod{
				"explicit": of(limited("main", gpu, 1), limited("side", "", 0)),
				"implicit": of(limited("main", implicit, 1), limited("side", "", 0)),
				"requests": using(of(uses("main", "two/a"), uses("side", "two/b")), "two"),
				"template": template,
			}
			n++
			for way, p := range pods {
				p.Name = fmt.Sprint(way, "-", n) // events of earlier pods are about other names
				r.must(r.Create(r.ctx, p))
			}
			for _, p := range pods {
				if name == "nothing is wrong" {
					r.exact(p.Name) // a claim may be read before it is reserved, for a moment
				}
				r.rightOrRefused(p.Name)
			}
			for _, p := range pods {
				r.must(r.Delete(r.ctx, p.Name))
			}
		})
	}
}

// template makes a ResourceClaimTemplate.
func (r *harness) template(name string, requests ...resourceapi.DeviceRequest) {
	r.t.Helper()
	templates := r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault)
	_, err := templates.Create(r.ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.t.Cleanup(func() { _ = templates.Delete(r.ctx, name, metav1.DeleteOptions{}) })
}

// rightOrRefused waits until a pod runs or is refused, and reports containers that run with other devices than the kubelet's mapping names.
func (r *harness) rightOrRefused(name string) {
	r.t.Helper()
	var pod *corev1.Pod
	refused := ""
	r.until("pod "+name+" runs or is refused", func() bool {
		pod = asked(r, func() (*corev1.Pod, error) {
			return r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
		})
		events := r.Events(r.ctx, name)
		for _, why := range []string{"ClaimMismatch", "NoClaim", "ClaimUnknown", "UnknownPod"} {
			if strings.Contains(events, why) {
				refused = why
			}
		}
		return refused != "" || pod.Status.Phase == corev1.PodRunning
	})
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running == nil {
			continue
		}
		want, got := r.promised(pod, s.Name), r.held(name, s.Name)[s.Name]
		if names := named(got...); !slices.Equal(names, want) {
			r.t.Errorf("container %s of pod %s has %q, and its claims name %q", s.Name, name, names, want)
		}
	}
	r.t.Logf("pod %s: %s %s", name, pod.Status.Phase, refused)
}

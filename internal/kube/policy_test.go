package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Kubernetes has mutating admission policies as v1 since 1.36, and as v1beta1 in 1.34 and 1.35 where the cluster's owner switches it on.
func TestPolicy(t *testing.T) {
	const with, without = `{"kind":"APIResourceList","resources":[{"name":"mutatingadmissionpolicies"}]}`, `{"kind":"APIResourceList","resources":[{"name":"validatingadmissionpolicies"}]}`
	for name, test := range map[string]struct {
		v1, v1beta1 string // empty: 404; a number: that status
		want        string
	}{
		"1.36":               {with, "", "v1"},
		"1.34 with the beta": {without, with, "v1beta1"},
		"1.34":               {without, "", NoPolicy},
		"1.33":               {without, without, NoPolicy},
		"no rights":          {"403", "", ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := map[string]string{"/apis/admissionregistration.k8s.io/v1": test.v1, "/apis/admissionregistration.k8s.io/v1beta1": test.v1beta1,
				"/version": `{"gitVersion":"v1.2.3"}`}[r.URL.Path]
			w.Header().Set("Content-Type", "application/json")
			switch {
			case answer == "":
				w.WriteHeader(http.StatusNotFound)
			case !strings.HasPrefix(answer, "{"):
				w.WriteHeader(http.StatusForbidden)
			default:
				_, _ = w.Write([]byte(answer))
			}
		}))
		t.Cleanup(server.Close)
		c, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs}})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := policy(t.Context(), c); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		r := NewRelease(c, slog.New(slog.DiscardHandler))
		err = r.ask(t.Context())
		limits := r.Limits()
		switch {
		case test.want == "" && !apierrors.IsForbidden(err):
			t.Errorf("%s: %v, want a refusal", name, err)
		case test.want != "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != NoPolicy && limits != nil:
			t.Errorf("%s: limits %+v, want none", name, limits)
		case test.want == NoPolicy && (len(limits) != 1 || limits[0].Release != "Kubernetes v1.2.3"):
			t.Errorf("%s: limits %+v, want one of Kubernetes v1.2.3", name, limits)
		}
	}
}

// Run asks again after an error, and never again after an answer or a refusal.
func TestRelease_Run(t *testing.T) {
	for name, last := range map[string]int{"an answer": http.StatusOK, "a refusal": http.StatusForbidden} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/version":
					_, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`))
				case strings.HasSuffix(r.URL.Path, "v1beta1"):
					w.WriteHeader(http.StatusNotFound)
				case asked.Add(1) <= 2:
					w.WriteHeader(http.StatusInternalServerError)
				default:
					w.WriteHeader(last)
					_, _ = w.Write([]byte(`{"kind":"APIResourceList","resources":[]}`))
				}
			}))
			defer server.Close()
			c, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs}})
			if err != nil {
				t.Fatal(err)
			}
			r := NewRelease(c, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			for asked.Load() < 3 || last == http.StatusOK && r.Limits() == nil {
				runtime.Gosched()
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := asked.Load(); n != 3 {
				t.Errorf("asked %d times, want 3", n)
			}
			if last == http.StatusForbidden && r.Limits() != nil {
				t.Errorf("limits %+v after a refusal", r.Limits())
			}
		})
	}
}

package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			case r.Header.Get("Accept") != "application/json": // as the API server does
				w.Header().Set("Content-Type", protobuf)
				_, _ = w.Write([]byte("k8s\x00"))
			case answer == "":
				w.WriteHeader(http.StatusNotFound)
			case !strings.HasPrefix(answer, "{"):
				w.WriteHeader(http.StatusForbidden)
			default:
				_, _ = w.Write([]byte(answer))
			}
		}))
		t.Cleanup(server.Close)
		c, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL,
			ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs, ContentType: protobuf, AcceptContentTypes: accepted}})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := policy(t.Context(), c); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		r := NewServerVersion(c, slog.New(slog.DiscardHandler))
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

type transport func(*http.Request) int // the status

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body := `{"kind":"APIResourceList","resources":[]}`
	if r.URL.Path == "/version" {
		body = `{"gitVersion":"v1.2.3"}`
	}
	return &http.Response{StatusCode: t(r), Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Run asks again after an error, and never again after an answer or a refusal.
func TestRelease_Run(t *testing.T) {
	for name, last := range map[string]int{"an answer": http.StatusOK, "a refusal": http.StatusForbidden} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				c, err := rest.UnversionedRESTClientForConfigAndClient(&rest.Config{Host: "http://api", ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs}},
					&http.Client{Transport: transport(func(r *http.Request) int {
						switch {
						case r.URL.Path == "/version":
							return http.StatusOK
						case strings.HasSuffix(r.URL.Path, "v1beta1"):
							return http.StatusNotFound
						}
						asked++
						if asked < 3 {
							return http.StatusInternalServerError
						}
						return last
					})})
				if err != nil {
					t.Fatal(err)
				}
				r := NewServerVersion(c, slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				if asked != 3 {
					t.Errorf("asked %d times in a minute, want 3", asked)
				}
				if known := r.Limits() != nil; known != (last == http.StatusOK) {
					t.Errorf("limits %+v", r.Limits())
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

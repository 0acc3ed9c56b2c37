package dra_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// The end of devmgrd interrupts a try, which is no reason why slices cannot be created.
func TestTry_EndDuringTry_IsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, n := kubetest.NewInMemory(t), newNode()
		p, _, _ := publish(t, api, n)
		at(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		api.Refuse(func(verb, _ string) int {
			if verb == "create" {
				cancel()
				return http.StatusInternalServerError
			}
			return 0
		})
		if err := n.slices.Try(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("Try returns %v, with its context %v", err, ctx.Err())
		}
		if err := p.Check(); err != nil {
			t.Error("Check:", err)
		}
	})
}

package ledger

import "github.com/devmgrd/devmgrd/internal/device"

// These are the steps of the Ledger's methods, for tests that know the pods themselves.

func (r *Resource) Accept(o device.Offer, l *Listing)                  { r.accept(o, l, l.Changed(r.listing)) }
func (r *Resource) Withhold(unlisted map[device.ID]int64) (freed bool) { return r.withhold(unlisted) }
func (r *Resource) Take(id device.ID, pod device.PodUID)               { r.take(id, pod) }
func (r *Resource) Release(ids []device.ID, pod device.PodUID)         { r.leave(ids, pod) }
func (r *Resource) AddRequests(n int)                                  { r.requests, r.admitted = r.requests+n, r.admitted+n }
func (r *Resource) Admitted() int                                      { return r.admitted }

package statuspage

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// A Source has the page's data: the read-only calls of AdminService. They return at once.
type Source interface {
	GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error)
	ListPlugins(context.Context, *adminv1.ListPluginsRequest) (*adminv1.ListPluginsResponse, error)
	// EachDevice yields a resource's devices, in the order of their IDs; nothing: there is no such resource.
	EachDevice(resource string) iter.Seq[*adminv1.Device]
	ListAssignments(context.Context, *adminv1.ListAssignmentsRequest) (*adminv1.ListAssignmentsResponse, error)
	ListHistory(context.Context, *adminv1.ListHistoryRequest) (*adminv1.ListHistoryResponse, error)
	Explain(context.Context, *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error)
	// Updated returns a channel that is closed when an answer may have changed since the call. It does not cover the readiness of
	// components, and the passing of time.
	Updated() <-chan struct{}
}

// Config is what New needs.
type Config struct {
	Source Source
	Log    *slog.Logger
}

// A Page is the status page.
type Page struct {
	cfg     Config
	streams chan struct{} // one value for each open stream

	mu     locks.Mutex[locks.Leaf] // guards the fields below
	newest *rendering              // nil: none yet
	making chan struct{}           // closed when the rendering under way is done; nil: there is none
}

const maxStreams = 32

// New returns a Page. It starts nothing.
func New(c Config) *Page {
	if c.Source == nil || c.Log == nil {
		panic("page: Source and Log are required")
	}
	return &Page{cfg: c, streams: make(chan struct{}, maxStreams)}
}

// Mount adds the page's paths to a server. A stream ends with the context of its request, so these contexts have to end before the
// server waits for its requests.
func (p *Page) Mount(on *http.ServeMux) {
	on.HandleFunc("GET /{$}", headed(p.page))
	on.HandleFunc("GET /events", headed(p.events))
}

var (
	//go:embed page.html
	layout string
	//go:embed page.css
	style string
	//go:embed page.js
	script string

	shell = template.Must(template.New("page").Parse(layout))
	// build lets a browser notice that the page has another style or script than its own.
	build = hex.EncodeToString(sum(layout + style + script)[:8])
	// policy lets a browser run the page's own style and script, and call this daemon. It forbids all else.
	policy = fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", source(style), source(script))
)

func sum(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

// source names an inline style or script as a content security policy does.
func source(s string) string { return "sha256-" + base64.StdEncoding.EncodeToString(sum(s)) }

// headed sets the headers of each answer.
func headed(then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		then(w, r)
	}
}

// sendLimit bounds the sending of a page, in place of the server's limit. The server's limit begins with the request, and would
// close the connection where a busy machine takes longer to render the page.
const sendLimit = 30 * time.Second

func (p *Page) page(w http.ResponseWriter, r *http.Request) {
	l, err := p.view(r.Context())
	// A writer that wraps the connection may support no deadline; the page is sent without one.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendLimit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return // the client has gone
	}
	if err != nil {
		if r.Context().Err() == nil {
			p.cfg.Log.Error("cannot render status page", "err", err)
		}
		http.Error(w, "The page cannot be rendered; devmgrd's log has the error. devmgrd status shows the same data.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(l.body)))
	_, _ = w.Write(l.body) // on an error the client has gone
}

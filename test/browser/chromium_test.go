package browser

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/gobuild"
)

var update = flag.Bool("update", false, "write the pictures in docs/images")

func TestMain(m *testing.M) {
	flag.Parse()
	if err := prepare(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// prepare installs Chromium and builds devmgrd. The tests' time limit begins afterwards.
func prepare(ctx context.Context) error {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{
		For:      "the page is tested in Chromium",
		Missing:  apt.Programs(map[string]string{"chromium": "chromium"}),
		Anywhere: "dnf install chromium (Fedora); it has to be in PATH as chromium",
	})
	if err != nil {
		return err
	}
	return gobuild.Run(ctx, os.Stderr, gobuild.Build{
		Title: "devmgrd", Dir: filepath.Join("..", ".."), Output: []string{"-o", filepath.Join("bin", "devmgrd")}, Packages: []string{"./cmd/devmgrd"},
	})
}

// A tab is one page in a browser of its own, which ends with the test.
type tab struct {
	context.Context
	t *testing.T

	mu      sync.Mutex
	trouble []string // what the browser has complained of
	asked   []string // all that it has asked for
}

const limit = time.Minute // for what takes a second: the machine may do many things at once

// open opens an empty tab, so wide.
func open(t *testing.T, width, height int) *tab {
	t.Helper()
	profile, err := os.MkdirTemp("", "devmgrd-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath("chromium"), chromedp.UserDataDir(profile), chromedp.WindowSize(width, height),
		chromedp.Headless, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("hide-scrollbars", true),
	}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocated, free := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocated)
	tb := &tab{Context: ctx, t: t}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		end()
		free()
		os.RemoveAll(profile)
	})
	if err := chromedp.Listen(ctx, tb.hear); err != nil { // which starts the browser
		t.Fatal(err)
	}
	tb.do(chromedp.EmulateViewport(int64(width), int64(height)))
	tb.scheme("light")
	return tb
}

// hear takes notice of what the browser tells of a page.
func (tb *tab) hear(event any) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		tb.trouble = append(tb.trouble, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		tb.trouble = append(tb.trouble, "console: "+string(e.Type))
	case *log.EventEntryAdded: // violations of the policy are here, too
		if e.Entry.Level != log.EntryLevelInfo && e.Entry.Level != log.EntryLevelVerbose {
			tb.trouble = append(tb.trouble, fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		tb.asked = append(tb.asked, string(e.Type)+" "+e.Request.URL)
	}
}

// clean fails the test if the browser has complained, or requested anything from another address.
func (tb *tab) clean(address string) {
	tb.t.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, what := range tb.trouble {
		tb.t.Errorf("the browser complains: %s", what)
	}
	for _, what := range tb.asked {
		_, to, _ := strings.Cut(what, " ")
		if u, err := url.Parse(to); err != nil || u.Scheme != "data" && u.Scheme != "about" && u.Host != address {
			tb.t.Errorf("the browser asks for %s, and the page is on %s", what, address)
		}
	}
}

// loads is how often the document has been asked for by the browser itself.
func (tb *tab) loads() int {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	n := 0
	for _, what := range tb.asked {
		if strings.HasPrefix(what, string(network.ResourceTypeDocument)+" ") {
			n++
		}
	}
	return n
}

func (tb *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	get(tb, chromedp.Steps(actions...))
}

// get runs an action and returns its value.
func get[T any](tb *tab, action chromedp.Action[T]) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb, limit)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		tb.t.Fatal(err)
	}
	return v
}

// call sends one command to the browser.
func call[P, R any](tb *tab, command cdp.Command[P, R], params P) R {
	tb.t.Helper()
	return get(tb, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) })
}

// value evaluates an expression in the page.
func value[T any](tb *tab, expression string) T {
	tb.t.Helper()
	return get(tb, chromedp.Evaluate[T](expression))
}

// scheme sets the preferred colour scheme, light or dark.
func (tb *tab) scheme(name string) {
	tb.t.Helper()
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// until waits for an expression to be true, and fails the test with what is on the page if that is not in time.
func (tb *tab) until(what, expression string) {
	tb.t.Helper()
	tb.wait(what, func() bool {
		ctx, cancel := context.WithTimeout(tb, limit)
		defer cancel()
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if err != nil && !strings.Contains(err.Error(), "navigated or closed") { // the page reloads
			tb.t.Fatal(err)
		}
		return is
	})
}

func (tb *tab) wait(what string, condition func() bool) {
	tb.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(limit); !condition(); <-tick.C {
		if time.Now().After(late) {
			tb.t.Fatalf("not within %s: %s\n%s", limit, what, value[string](tb, "document.body.innerText"))
		}
	}
}

// picture returns all of the page.
func (tb *tab) picture() []byte {
	tb.t.Helper()
	return get(tb, chromedp.FullScreenshot(100))
}

// says reports whether all texts are on the page.
func (tb *tab) says(texts ...string) {
	tb.t.Helper()
	all := value[string](tb, "document.body.innerText")
	texts = slices.DeleteFunc(texts, func(s string) bool { return strings.Contains(all, s) })
	if len(texts) > 0 {
		tb.t.Errorf("the page does not say %q:\n%s", texts, all)
	}
}

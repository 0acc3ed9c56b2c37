package kubelet

import (
	"bytes"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
)

// Servers are processes of their own, so that what one of them allocates can be told from what its clients do; and so is each
// of many clients, since devmgrd knows clients by their processes. All are this test binary, started again. They do what they
// are asked on their standard input, and end with it.
const processVariable = "DEVMGRD_BENCH_PROCESS"

// process is one that has been started, as the benchmark sees it.
type process struct {
	*rpc.Client
	end func() // ends it, and waits until it has ended
}

// A Process is the same as it sees itself. Its methods are what it can be asked for.
type Process struct {
	t       *testing.T
	node    *node                       // of ServeDevmgrd
	manager *manager                    // of StartKubelet or StartDevmgrd
	conns   map[string]*grpc.ClientConn // of Connect, by socket
}

// none stands for no argument, and for no answer.
type none = struct{}

// pipes are two, one for each way.
type pipes struct {
	io.Reader
	io.WriteCloser
}

func startProcess(b *testing.B) *process {
	b.Helper()
	answers, theirs, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), processVariable+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	questions, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	theirs.Close()
	p := &process{Client: jsonrpc.NewClient(pipes{answers, questions})}
	p.end = sync.OnceFunc(func() {
		p.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("a process ended with %v:\n%s", err, said.String())
		}
		answers.Close()
	})
	b.Cleanup(p.end)
	return p
}

// do asks the process for something. The answer is where answer points to.
func (p *process) do(b *testing.B, method string, with, answer any) {
	b.Helper()
	if err := p.Call("Process."+method, with, answer); err != nil {
		b.Fatalf("%s: %v", method, err)
	}
}

// TestProcess is a process that a benchmark has started.
func TestProcess(t *testing.T) {
	if os.Getenv(processVariable) == "" {
		t.Skip("only the benchmarks start it")
	}
	server := rpc.NewServer()
	if err := server.Register(&Process{t: t, conns: map[string]*grpc.ClientConn{}}); err != nil {
		t.Fatal(err)
	}
	codec := jsonrpc.NewServerCodec(pipes{os.Stdin, os.NewFile(3, "answers")})
	for server.ServeRequest(codec) == nil { // in this goroutine, which is the one that may end the test
	}
}

// Allocations are what a process has allocated so far.
type Allocations struct{ Bytes, Objects int64 }

// Allocated tells what the process has allocated.
func (*Process) Allocated(_ none, a *Allocations) error {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*a = Allocations{int64(m.TotalAlloc), int64(m.Mallocs)}
	return nil
}

func (p *process) allocated(b *testing.B) (a Allocations) {
	b.Helper()
	p.do(b, "Allocated", none{}, &a)
	return a
}

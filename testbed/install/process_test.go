package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a script at work.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	text strings.Builder
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// log is what it has said so far.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// exampleTools makes a directory with the named programs and no others; one may be given as a file.
func exampleTools(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := name
		switch {
		case name == "kubectl":
			path = examplePlane().Binaries().Kubectl
		case !filepath.IsAbs(name):
			var err error
			path, err = exec.LookPath(name)
			must(t, err)
		}
		must(t, os.Symlink(path, filepath.Join(dir, filepath.Base(name))))
	}
	return dir
}

// start runs a script with /bin/sh until the test ends, if it does not end before. path is all that it finds programs in.
func start(t *testing.T, script, path string, env []string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command("/bin/sh", script), done: make(chan struct{})}
	p.cmd.Env = append(env, "PATH="+path)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = time.Second // a sleep of its may outlive it
	must(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(filepath.Dir(script)), p.log())
		}
	})
	return p
}

// says waits until the script has said something.
func (p *process) says(text string) {
	p.t.Helper()
	until(p.t, "the script to say "+text, func() bool { return strings.Contains(p.log(), text) })
}

// ends waits for its end and checks its status.
func (p *process) ends(status int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the script does not end")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != status {
		p.t.Errorf("the script's exit status is %d, expected %d", got, status)
	}
}

// stopped ends it as a kubelet does whose pod was deleted; the pod's token is worth nothing any more then.
func (p *process) stopped() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	p.ends(0)
}

// running fails if the script has ended.
func (p *process) running() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Errorf("the script has ended")
	default:
	}
}

func jsonOf(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return b
}

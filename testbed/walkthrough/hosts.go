package walkthrough

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

const (
	// socketEnv names the socket at which the test answers for its hosts.
	socketEnv = "WALKTHROUGH_HOSTS"
	// noSSH is the exit status of ssh if ssh itself failed, and not the command.
	noSSH = 255
)

type request struct {
	Args []string // ssh or scp first
	Dir  string
}

type reply struct {
	Output string
	Exit   int
}

// Main runs ssh or scp if a [Shell] started the process under that name. A TestMain calls it first.
func Main() {
	socket, name := os.Getenv(socketEnv), filepath.Base(os.Args[0])
	if socket == "" || name != "ssh" && name != "scp" {
		return
	}
	answer, err := ask(socket, append([]string{name}, os.Args[1:]...))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(noSSH)
	}
	fmt.Print(answer.Output)
	os.Exit(answer.Exit)
}

func ask(socket string, args []string) (reply, error) {
	var answer reply
	dir, err := os.Getwd()
	if err != nil {
		return answer, err
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(request{args, dir}); err != nil {
		return answer, err
	}
	return answer, json.NewDecoder(conn).Decode(&answer)
}

// hosts answers the requests of ssh and scp.
type hosts struct {
	byName   map[string]Host
	listener net.Listener
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

func serve(socket string, byName map[string]Host) (*hosts, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	h := &hosts{byName: byName, listener: listener}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			h.running.Go(func() { h.answer(conn) })
		}
	})
	return h, nil
}

func (h *hosts) close() error {
	h.stop()
	err := h.listener.Close()
	h.running.Wait()
	return err
}

// trouble returns what failed on the hosts since the last call.
func (h *hosts) trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := errors.Join(h.errs...)
	h.errs = nil
	return err
}

func (h *hosts) answer(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(h.ctx, func() { conn.Close() })()
	var r request
	if json.NewDecoder(conn).Decode(&r) != nil {
		return // the client has disconnected
	}
	answer, err := h.do(r)
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(r.Args, " "), err)
		h.mu.Lock()
		h.errs = append(h.errs, err)
		h.mu.Unlock()
		answer = reply{Output: err.Error() + "\n", Exit: noSSH}
	}
	_ = json.NewEncoder(conn).Encode(answer)
}

func (h *hosts) do(r request) (reply, error) {
	args := r.Args[1:]
	if len(args) < 2 {
		return reply{}, errors.New("expected more arguments")
	}
	if r.Args[0] == "ssh" {
		host, err := h.host(args[0])
		if err != nil {
			return reply{}, err
		}
		output, exit, err := host.Run(h.ctx, strings.Join(args[1:], " "))
		return reply{output, exit}, err
	}
	if len(args) != 2 {
		return reply{}, errors.New("expected a file and its destination")
	}
	where, to, _ := strings.Cut(args[1], ":")
	host, err := h.host(where)
	if err != nil {
		return reply{}, err
	}
	if !path.IsAbs(to) {
		return reply{}, fmt.Errorf("%q is not an absolute path", to)
	}
	from := filepath.Join(r.Dir, args[0])
	info, err := os.Stat(from)
	if err != nil {
		return reply{Output: "scp: " + err.Error() + "\n", Exit: 1}, nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return reply{}, err
	}
	return reply{}, host.Put(h.ctx, to, data, info.Mode().Perm())
}

func (h *hosts) host(address string) (Host, error) {
	name, ok := strings.CutPrefix(address, "root@")
	if host := h.byName[name]; ok && host != nil {
		return host, nil
	}
	return nil, fmt.Errorf("there is no host at %q", address)
}

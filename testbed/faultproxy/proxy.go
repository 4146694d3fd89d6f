package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options configure a proxy.
type Options struct {
	// Name identifies the proxy in a test's log.
	Name string
	// Config is the identity that the proxy uses with the API server, by client certificate or token.
	Config *rest.Config
	// Dir is the directory for the kubeconfig. The caller owns it.
	Dir string
	// Address is where the proxy listens. The zero value is 127.0.0.1. Every process that can reach the address uses the identity.
	Address netip.Addr
	// Label names a write. It may be nil. It receives the body and must be fast.
	Label func(*Request) string
	// Record receives every request when it ends. It must not block for long.
	Record func(Record)
}

// A Proxy is a proxy between one process and the API server. Its methods are safe for concurrent use.
type Proxy struct {
	opts       Options
	upstream   *url.URL
	transport  *http.Transport
	speaks     http.RoundTripper // transport, plus the identity's token if it has one
	server     *http.Server
	kubeconfig string
	life       context.Context // ends with Close
	end        context.CancelFunc
	running    sync.WaitGroup // the server and all requests

	mu      sync.Mutex
	closed  bool
	rules   []*Rule
	numbers map[[3]string]int
	watches map[*watch]bool
	shift   time.Duration
	records []Record
	more    int
}

// watch is a running watch.
type watch struct{ cut context.CancelFunc }

// Start starts a proxy. The caller must close it.
func Start(o Options) (*Proxy, error) {
	failed := func(err error) (*Proxy, error) { return nil, fmt.Errorf("starting the proxy %s: %w", o.Name, err) }
	upstream, err := url.Parse(o.Config.Host)
	if err != nil {
		return failed(err)
	}
	secret, err := rest.TLSConfigFor(o.Config)
	if err != nil {
		return failed(err)
	}
	if !o.Address.IsValid() {
		o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(o.Address, 0).String())
	if err != nil {
		return failed(err)
	}
	p := &Proxy{
		opts: o, upstream: upstream, numbers: map[[3]string]int{}, watches: map[*watch]bool{},
		// HTTP/1.1, so that a broken connection affects one request. The proxy adds no compression.
		transport: &http.Transport{
			TLSClientConfig: secret, DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 30 * time.Second,
		},
	}
	if p.speaks, err = rest.HTTPWrappersForConfig(o.Config, p.transport); err != nil {
		listener.Close()
		return failed(err)
	}
	p.life, p.end = context.WithCancel(context.Background())
	if p.kubeconfig, err = p.writeKubeconfig(listener.Addr().String()); err != nil {
		listener.Close()
		return failed(err)
	}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(nothing{}, "", 0), ReadHeaderTimeout: time.Minute}
	p.running.Go(func() { _ = p.server.Serve(listener) })
	return p, nil
}

// nothing discards what net/http logs about connections that tests cut.
type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }

func (p *Proxy) writeKubeconfig(address string) (string, error) {
	file, err := os.CreateTemp(p.opts.Dir, "proxy-*.kubeconfig")
	if err != nil {
		return "", err
	}
	file.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["proxy"] = &clientcmdapi.Cluster{Server: "http://" + address}
	config.AuthInfos["proxy"] = clientcmdapi.NewAuthInfo() // a user without a credential, because the proxy has it
	config.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy", AuthInfo: "proxy"}
	config.CurrentContext = "proxy"
	return file.Name(), clientcmd.WriteToFile(*config, file.Name())
}

// Name returns the name in the options.
func (p *Proxy) Name() string { return p.opts.Name }

// Kubeconfig returns the path of a kubeconfig for the process behind the proxy.
func (p *Proxy) Kubeconfig() string { return p.kubeconfig }

// Add adds a rule after the existing rules. remove removes it.
func (p *Proxy) Add(rule Rule) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	added := &rule
	p.rules = append(p.rules, added)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rules = slices.DeleteFunc(slices.Clone(p.rules), func(r *Rule) bool { return r == added })
	}
}

// CutWatches cuts every running watch, even in the middle of an event.
func (p *Proxy) CutWatches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.watches {
		w.cut()
	}
	return len(p.watches)
}

// ShiftDate adds d to the Date header of every answer from now on. A client that trusts the header assumes that its own clock is wrong by
// d.
func (p *Proxy) ShiftDate(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shift = d
}

// Close cuts every connection and waits until no part of the proxy runs, including functions that rules called.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	err := p.server.Close()
	p.running.Wait()
	p.transport.CloseIdleConnections()
	if rm := os.Remove(p.kubeconfig); rm != nil && !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// enter counts a request as running. It returns false after Close.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

// number counts a request and returns the rules for it.
func (p *Proxy) number(r *Request) []*Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [3]string{r.Verb, r.Resource, r.Subresource}
	p.numbers[key]++
	r.Number = p.numbers[key]
	return slices.Clone(p.rules)
}

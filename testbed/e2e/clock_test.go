package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

const clockPath = "/etc/lockkeeper/config.d/clock.toml"

// testClock makes the clocks of hosts differ by an hour from the API server's. Containers share the machine's clock, so
// a proxy changes the API server's time in its answers, for one host at a time. A host with a wrong clock gets its
// turn, because nothing in a turn depends on the time of day. A coordinator with a wrong clock gives up its term and
// reports why, and while no candidate has a correct clock no host gets a turn.
func testClock(t *testing.T, f *fleet) {
	h, leader := f.follower(t), f.leader(t)
	var candidates []*realhost.Host
	credentials := map[string]string{}
	for _, host := range f.Hosts {
		if text, err := host.Exec(within(t, soon), "cat", credentialPath); err == nil {
			candidates = append(candidates, host)
			credentials[host.Name()] = text
		}
	}
	if len(candidates) != 2 || leader == nil {
		t.Fatalf("%d hosts have a coordinator's credential; expected two, one of which coordinates", len(candidates))
	}
	term := epoch(t)
	proxies := map[string]*faultproxy.Proxy{}
	for _, c := range candidates {
		config, err := cp.CoordinatorConfig()
		must(t, err)
		proxies[c.Name()] = throughProxy(t, c, faultproxy.Options{Name: c.Name() + "'s coordinator", Config: config, Address: lab.Gateway()}, credentialPath)
	}
	newTerm(t, term)

	config, err := cp.NodeConfig(h.Name())
	must(t, err)
	const kubeconfig = "/etc/lockkeeper/host.kubeconfig"
	own := throughProxy(t, h, faultproxy.Options{Name: h.Name(), Config: config, Address: lab.Gateway()}, kubeconfig)
	must(t, h.WriteFile(within(t, soon), clockPath, fmt.Appendf(nil, "node_name = %q\n[kubernetes]\nkubeconfig = %q\n", h.Name(), kubeconfig), 0o644))
	own.ShiftDate(-time.Hour)
	sh(t, h, "systemctl restart lockkeeper")
	boots := h.Boots()
	version := f.stage(t, h)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)

	for _, p := range proxies {
		p.ShiftDate(time.Hour)
	}
	for _, c := range candidates {
		f.says(t, c, "does not coordinate: this host's clock is 1h0m0s behind the API server's")
	}
	version = f.stage(t, h)
	until(t, soon, h.Name(), "to want its reboot", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsReboot })
	f.showHost(t.Context(), t, candidates[0], 6)
	f.status(t)
	if n := turn.FromNode(node(t, h.Name())); n.InTurn() {
		t.Errorf("%s was granted a turn by a coordinator whose clock is an hour off", h.Name())
	}
	proxies[candidates[1].Name()].ShiftDate(0)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+2)

	term = epoch(t)
	for _, c := range candidates {
		must(t, c.WriteFile(within(t, soon), credentialPath, []byte(credentials[c.Name()]), 0o600))
	}
	sh(t, h, "rm "+clockPath+" && systemctl restart lockkeeper")
	newTerm(t, term)
}

// epoch returns the epoch of the current term, or "" between two terms.
func epoch(t *testing.T) string {
	t.Helper()
	return cluster(t).Epoch()
}

// newTerm waits until a term other than before has begun.
func newTerm(t *testing.T, before string) {
	t.Helper()
	eventually(t, soon, "another term than "+before, func(context.Context) (bool, error) {
		now := epoch(t)
		return now != "" && now != before, nil
	})
}

// throughProxy starts a proxy and writes its kubeconfig to a host.
func throughProxy(t *testing.T, h *realhost.Host, o faultproxy.Options, file string) *faultproxy.Proxy {
	t.Helper()
	o.Dir = t.TempDir()
	p, err := faultproxy.Start(o)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	text, err := os.ReadFile(p.Kubeconfig())
	must(t, err)
	must(t, h.WriteFile(within(t, soon), file, text, 0o600))
	return p
}

package rig

import (
	"fmt"
	"os"

	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Proxies are the proxies through which one host reaches the API server: one for its requests as a host, one for its requests as a coordinator.
// Coordinator is nil if the host may not coordinate.
type Proxies struct{ Host, Coordinator *faultproxy.Proxy }

// All returns the proxies that are not nil.
func (p Proxies) All() []*faultproxy.Proxy {
	if p.Coordinator == nil {
		return []*faultproxy.Proxy{p.Host}
	}
	return []*faultproxy.Proxy{p.Host, p.Coordinator}
}

// The roles of a proxy.
const (
	RoleHost        = "host"
	RoleCoordinator = "coordinator"
)

// startProxies starts the proxies of the fleet's hosts and configures the hosts to use them. The rig closes the proxies.
func (r *Rig) startProxies(o *Options) (err error) {
	if r.dir, err = os.MkdirTemp("", "rig-"); err != nil {
		return err
	}
	for i := range o.Fleet.Hosts {
		name := fmt.Sprint("node-", i+1)
		var p Proxies
		if p.Host, err = r.startProxy(name, RoleHost, o.Label); err != nil {
			return err
		}
		r.Proxies[name] = p
		if i < o.Fleet.Coordinators {
			if p.Coordinator, err = r.startProxy(name, RoleCoordinator, o.Label); err != nil {
				return err
			}
			r.Proxies[name] = p
		}
	}
	o.Fleet.Each = func(_ int, h *simhost.Options) {
		p := r.Proxies[h.Name]
		h.Kubeconfig = p.Host.Kubeconfig()
		if p.Coordinator != nil {
			h.CoordinatorKubeconfig = p.Coordinator.Kubeconfig()
		}
	}
	return nil
}

func (r *Rig) startProxy(host, role string, label func(role string, q *faultproxy.Request) string) (*faultproxy.Proxy, error) {
	identity, err := r.ControlPlane.NodeConfig(host)
	if role == RoleCoordinator {
		identity, err = r.ControlPlane.CoordinatorConfig()
	}
	if err != nil {
		return nil, err
	}
	o := faultproxy.Options{Name: role + " of " + host, Config: identity, Dir: r.dir}
	if label != nil {
		o.Label = func(q *faultproxy.Request) string { return label(role, q) }
	}
	return faultproxy.Start(o)
}

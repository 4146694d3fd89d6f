package simhost

import (
	"errors"
	"time"
)

// Options describe a host. Name and Binary are required.
type Options struct {
	// Name is the name of the host and of its Node.
	Name string
	// The kubelet sets Zone and Labels on the Node when it first registers. Labels may contain lockkeeper.dev/managed.
	Zone   string
	Labels map[string]string
	// ControlPlane gives the Node the label of a control-plane node. The testbed's admin sets the label, because
	// NodeRestriction forbids it to kubelets.
	ControlPlane bool
	// Coordinator gives the host the coordinator's kubeconfig. See [Host.SetCoordinator].
	Coordinator bool
	// Version is the version that the host runs first; "" means 4.1.0.
	Version string

	// Binary is the program to run as lockkeeper. The host calls it as: Binary run --config FILE --root DIR.
	Binary string
	// Config edits lockkeeper.toml before it is first written.
	Config func(Config)
	// Env is added to lockkeeper's environment. Its elements have the form KEY=VALUE.
	Env []string
	// Kubeconfig and CoordinatorKubeconfig replace the files with the two credentials, for example with files that go through a fault
	// proxy. The kubelet's own requests bypass the proxy.
	Kubeconfig, CoordinatorKubeconfig string

	// RestartDelay is the delay before lockkeeper is restarted after an unrequested exit; 0 means that it is not restarted. It is never
	// restarted after exit status 64 or 78.
	RestartDelay time.Duration
	// StopTimeout is how long lockkeeper may take to exit after SIGTERM; 0 means 5 s.
	StopTimeout time.Duration
	// WithoutLockkeeper starts the host without lockkeeper; see [Host.StartLockkeeper].
	WithoutLockkeeper bool

	// BootedAgo is the uptime in /proc/uptime at the start of the first boot. It increases from there. 0 means one
	// hour.
	BootedAgo time.Duration
	// Uptime is the uptime at the start of all later boots. 0 means a fresh boot, in which health.timeout has only
	// just started.
	Uptime time.Duration
	// DownTime is the time between the end of a boot and the next boot; 0 means 300 ms.
	DownTime time.Duration
	// InhibitDelayMax is how long logind waits for delay inhibitors; 0 means logind's default, 5 s.
	InhibitDelayMax time.Duration
	// WithoutEngine leaves update_engine off the bus, as with /usr/.noupdate; see [Engine.Start].
	WithoutEngine bool
	Kubelet       KubeletOptions

	// Dir is the directory for all files of the host. It remains after Close. "" means a temporary directory.
	Dir string
	// Events is called with every event of this host, one at a time and from several goroutines. The host waits until the call returns.
	// Events may call the host's getters, but no method that starts, stops or waits.
	Events func(Event)
}

func (o *Options) setDefaults() error {
	if o.Name == "" {
		return errors.New("the name is empty")
	}
	if o.Binary == "" && !o.WithoutLockkeeper {
		return errors.New("the binary to run as lockkeeper is not set")
	}
	if o.Version == "" {
		o.Version = "4.1.0"
	}
	for d, fallback := range map[*time.Duration]time.Duration{
		&o.StopTimeout: 5 * time.Second, &o.BootedAgo: time.Hour, &o.DownTime: 300 * time.Millisecond, &o.InhibitDelayMax: 5 * time.Second,
		&o.Kubelet.Heartbeat: 2 * time.Second,
	} {
		if *d < 0 {
			return errors.New("a duration is negative")
		}
		if *d == 0 {
			*d = fallback
		}
	}
	return nil
}

package simhost

import (
	"errors"
	"time"
)

// Options describe a host. Name and Binary are needed.
type Options struct {
	// Name of the host and of its Node.
	Name string
	// Zone and Labels are given to the Node by its kubelet, at its first registration. The label lockkeeper.dev/managed may be
	// among them.
	Zone        string
	Labels      map[string]string
	Annotations map[string]string
	// ControlPlane: the Node carries the label of a control plane node, put there by the testbed's admin, since
	// NodeRestriction forbids it to kubelets.
	ControlPlane bool
	// Coordinator: the host has the coordinator's kubeconfig. See [Host.SetCoordinator].
	Coordinator bool
	// Version is what the host runs at first; "" is 4.1.0.
	Version string

	// Binary is the program to run as lockkeeper, called as: Binary run --config FILE --root DIR.
	Binary string
	// Config edits lockkeeper.toml before it is first written; ConfigExtra is TOML put behind it.
	Config      func(Config)
	ConfigExtra string
	// Env is added to lockkeeper's environment, as KEY=VALUE.
	Env []string
	// Kubeconfig and CoordinatorKubeconfig replace the files with the two credentials, for one that goes through a fault proxy.
	// The kubelet's own traffic goes straight.
	Kubeconfig, CoordinatorKubeconfig string

	// RestartDelay is after what time lockkeeper is started again when it ends unasked; 0 never. It is not after status 64 or 78.
	RestartDelay time.Duration
	// StopTimeout is how long lockkeeper has after SIGTERM; 0 is 5 s.
	StopTimeout time.Duration
	// WithoutLockkeeper: the host starts without it; see [Host.StartLockkeeper].
	WithoutLockkeeper bool

	// BootedAgo is what /proc/uptime says when the first boot begins; it grows from there. 0 is an hour.
	BootedAgo time.Duration
	// Uptime is the same for the boots after it; 0 is a fresh boot, whose health.timeout has only begun.
	Uptime time.Duration
	// DownTime is between the end of a boot and the next one; 0 is 300 ms.
	DownTime time.Duration
	// InhibitDelayMax is how long logind waits for delay inhibitors; 0 is logind's own 5 s.
	InhibitDelayMax time.Duration
	// WithoutEngine: update_engine is not on the bus, as with /usr/.noupdate; see [Engine.Start].
	WithoutEngine bool
	Kubelet       KubeletOptions

	// Dir is the directory for everything of the host; it stays after Close. "" is a temporary one.
	Dir string
	// KeepNode leaves the Node in the cluster when the host is closed.
	KeepNode bool
	// Log gets each line that lockkeeper writes, without its newline; it must not block for long.
	Log func(line string)
	// Events is called with every event of this host, one at a time, from several goroutines; what it is called for waits until
	// it returns. It may ask the host for facts; it must not call what starts, stops or waits.
	Events func(Event)
}

func (o *Options) setDefaults() error {
	if o.Name == "" {
		return errors.New("it has no name")
	}
	if o.Binary == "" && !o.WithoutLockkeeper {
		return errors.New("there is no binary to run as lockkeeper")
	}
	if o.Version == "" {
		o.Version = "4.1.0"
	}
	for d, fallback := range map[*time.Duration]time.Duration{
		&o.StopTimeout: 5 * time.Second, &o.BootedAgo: time.Hour, &o.DownTime: 300 * time.Millisecond, &o.InhibitDelayMax: 5 * time.Second,
		&o.Kubelet.Heartbeat: 2 * time.Second, &o.Kubelet.StatusEvery: 5 * time.Minute,
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

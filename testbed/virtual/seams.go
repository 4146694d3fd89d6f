package virtual

import (
	"net/http"
	"time"
)

// target is the fleet that an executor carries a plan out on.
//
// The executor calls each method in a goroutine of its own, inside the bubble, and possibly while a request of the same process waits in
// its Transport: a method may wait for that process to end. Any method may be called at any time, in any order and at the same instant as
// others. A method that has nothing to do now, such as Kill on a host that is off, returns at once. Where the interface has a method that
// begins something and one that ends it, the second is called once, after the last fault of that kind on the host has ended.
type target interface {
	// Hosts returns the names of the hosts, which are the names of their Nodes too, in a fixed order.
	Hosts() []string
	// Client returns a way to the API server as the user that no fault affects: for admins, hosts that lie, thieves and restored objects.
	Client(user string) http.RoundTripper

	// Kill ends lockkeeper's process on the host at once, like SIGKILL. The host's service manager starts another one.
	Kill(host string)
	// Restart has the service manager stop lockkeeper's process, and start another one.
	Restart(host string)
	// Freeze stops lockkeeper's process on the host like SIGSTOP: nothing goes out and nothing comes in until Thaw. It calls Freeze of the
	// process's Transports.
	Freeze(host string)
	Thaw(host string)
	// StartSecond starts a second process of lockkeeper on the host, as an admin might by hand, with Transports of its own; StopSecond kills
	// it.
	StartSecond(host string)
	StopSecond(host string)

	// Crash cuts the host's power: lockkeeper, the kubelet, logind, the bus, and what was not written to disk. PowerOn boots it, with another
	// boot ID.
	Crash(host string)
	PowerOn(host string)
	// StopBus ends the host's D-Bus daemon, and with it every connection to it.
	StopBus(host string)
	StartBus(host string)
	// DelayBus delays each D-Bus call of lockkeeper on the host that is made from now on; 0 ends that.
	DelayBus(host string, d time.Duration)
	// SetLogind makes the host's logind misbehave.
	SetLogind(host string, mode logindMode)
	// RestartLogind restarts the host's logind.
	RestartLogind(host string)
	// Inhibit has a program on the host inhibit shutdowns until EndInhibit, and LogIn logs a user in until LogOut; both end with the boot.
	Inhibit(host string)
	EndInhibit(host string)
	LogIn(host string)
	LogOut(host string)
	// Stage has the host's update engine stage the version, and Withdraw has it drop what is staged (ResetStatus).
	Stage(host, version string)
	Withdraw(host string)
	// BreakKubelet has the host's kubelet report that it is not Ready; FixKubelet ends that.
	BreakKubelet(host string)
	FixKubelet(host string)
	// RollBack has the host's next boot run the version that it runs now, as after a boot of the staged version that failed.
	RollBack(host string)
	// RestartClient restarts the host's FleetLock client, and HangUp ends its requests without an answer.
	RestartClient(host string)
	HangUp(host string)
	// StopClient silences the host's FleetLock client until StartClient, or the next boot.
	StopClient(host string, mode clientMode)
	StartClient(host string, mode clientMode)
	// ChangeFile changes a file of the host's service.
	ChangeFile(host, name string, to content)
	// AddSentinel creates a file on the host that requests a reboot, until RemoveSentinel or the next boot.
	AddSentinel(host string)
	RemoveSentinel(host string)
	// SetUnit makes the starts of a hook unit or of the host's service misbehave.
	SetUnit(host, unit string, mode unitMode)
	// RestartKubelet restarts the host's kubelet. It registers the Node if it is missing.
	RestartKubelet(host string)

	// ShiftClock sets by how much the API server's clock is ahead of all others.
	ShiftClock(d time.Duration)
	// ShiftHostClock sets by how much the host's clock is ahead of all others, as far as its coordinator can tell.
	ShiftHostClock(host string, d time.Duration)
	// CutWatches ends every watch of the resource at the API server; "" means all resources.
	CutWatches(resource string)
	// Compact makes the API server forget its history: a watch from an old resourceVersion is answered with 410.
	Compact()
	// Snapshot returns the state of the store. Restore sets the store back to it, like etcd's restore of a backup.
	Snapshot() any
	Restore(snapshot any)
	// BlockDrains makes a PodDisruptionBudget refuse every eviction on the host until AllowDrains.
	BlockDrains(host string)
	AllowDrains(host string)
	// AddPod binds another pod to the Node, whether the Node is cordoned or not.
	AddPod(host string)
	// AddJob runs a pod on the Node that the policy may block, until EndJob.
	AddJob(host, mode string)
	EndJob(host, mode string)
	// AddManager runs a pod of kured on the Node until RemoveManager.
	AddManager(host string)
	RemoveManager(host string)
}

// logindMode is how a host's logind treats a call to reboot.
type logindMode string

const (
	logindWorks   logindMode = ""
	logindRefuses logindMode = "refuse" // an error, and no reboot
	logindLoses   logindMode = "lose"   // a reboot, and no answer
	logindIgnores logindMode = "ignore" // an answer, and no reboot
	logindStalls  logindMode = "stall"  // it has stopped, and hangs in its next start: the bus keeps the calls that start it
)

// clientMode is how a host's FleetLock client is silent.
type clientMode string

const (
	clientStopped   clientMode = "stopped"   // its service does not run, and then starts again
	clientSuspended clientMode = "suspended" // it receives answers, and acts on them when it continues
	clientByHand    clientMode = "by-hand"   // its service does not run, and an admin reboots the host if it waits for its client
)

// unitMode is what the starts of a unit do.
type unitMode string

const (
	unitWorks unitMode = ""
	unitFails unitMode = "fails"
	unitHangs unitMode = "hangs" // until the unit works, or systemd's timeout
)

// role is which of its ways to the API server a process uses for a request.
type role string

const (
	roleHost        role = "host"        // lockkeeper with the kubelet's credential
	roleCoordinator role = "coordinator" // lockkeeper with the coordinator's credential
	roleKubelet     role = "kubelet"     // the kubelet itself: it is affected when its host is cut off
)

// What the fleet calls, all of them on the executor:
//
//	e := newExecutor(plan, trace)              // in the bubble
//	rt := e.Transport("n1", roleHost, next)    // for each start of a process; the fleet calls its Sever, Freeze, Thaw
//	e.Happened("n1", "hook,before-drain")      // something that a fault can be triggered by and that is no request
//	e.Start(fleet)                             // the plan begins; it returns at once
//	<-e.Calm()                                 // closed when the quiet period begins: every fault has ended
//	e.Close()                                  // ends all goroutines; call it after the processes have ended

package virtual

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// aim is a sequence of faults that has to meet in one place to show anything. Faults that are chosen one by one hardly ever do.
type aim struct {
	// faults are lines of a plan. HOST stands for a host, N for a number from 1 to often.
	faults string
	often  int
	// choices are what other words stand for.
	choices map[string][]string
}

// grants are the states in which a turn begins.
var grants = []string{string(v1alpha1.StateBeforeDrain), string(v1alpha1.StateDraining)}

var aims = []aim{
	// The start of hook units waits for a slow bus, until the host's reads are old.
	{`HOST#N:host,patch,nodes,ack,BEFORE@answered bus-slow HOST for=2m0s mode=SLOW`, 3, map[string][]string{
		"BEFORE": {"before-drain,seen", "draining,done", "rebooting,done"}, "SLOW": {"1s", "2s", "4s"},
	}},
	// A process ends between its commit and the reboot, at its first request in the new boot, or when it reports that boot.
	{`HOST#N:WHEN ENDS`, 3, map[string][]string{
		"WHEN": {
			"host,patch,nodes,ack,rebooting,committed@landed", "host,patch,nodes,ack,rebooting,committed@answered",
			"host,patch,nodes,ack,rebooting,committed>host,list,nodes", "host,patch,nodes,ack,rebooting,committed>host,patch,nodes",
			"host,patch,nodes,ack,rebooting,done", "host,patch,nodes,ack,rebooting,done@landed",
		},
		"ENDS": {"kill HOST", "restart HOST", "crash HOST for=20s", "start-twice HOST for=1m0s"},
	}},
	// A host's next turn begins right after its last one, and a write of that one lands late.
	{`HOST#N:host,patch,nodes,ack,uncordoning,done intent HOST for=1s mode=request-now
HOST#N:host,patch,nodes,ack,uncordoning,done>host,patch,nodes late-write for=30s mode=error`, 3, nil},
	// A kubelet is not Ready any more when its host has just proven its health.
	{`HOST#N:host,patch,nodes,ack,rebooting,done@MOMENT not-ready HOST for=LONG`, 2, map[string][]string{
		"MOMENT": {"landed", "landed", "answered"}, "LONG": {"2s", "1m0s"},
	}},
	// A pod cannot be evicted until the drain is overdue. Where the policy says so, the host deletes it.
	{`HOST#N:host,patch,nodes,ack,draining,seen budget HOST for=13m0s`, 2, nil},
	// logind is away between a host's last question and its call for a reboot, and comes back.
	{`HOST#N:sessions logind HOST for=LONG mode=stall`, 9, map[string][]string{
		"LONG": {"15s", "40s", "2m0s"},
	}},
	// A proxy repeats a grant and answers with the conflict of the second one, and its sender can neither read the Node nor see it.
	{`*#N:coordinator,patch,nodes,state,GRANT repeat for=10ms mode=second
*#N:coordinator,patch,nodes,state,GRANT>coordinator,get,nodes lost mode=error times=20
*#N:coordinator,patch,nodes,state,GRANT watch-hang for=1m0s`, 4, map[string][]string{"GRANT": grants}},
	// A thief grants turns of the present leader, whose watches show it nothing, to hosts whose pods cannot all be evicted.
	{`*#N:coordinator,update,leases watch-hang for=3m0s
*#N:coordinator,update,leases+100ms budget HOST for=5m0s
*#N:coordinator,update,leases+1s thief for=2m0s mode=THEFT`, 200, map[string][]string{
		"THEFT": {"grant-only", "grant-only", "grant-force", "grant-skip"},
	}},
}

// aimed returns one of the sequences.
func (g *generator) aimed() (faults []Fault) {
	for {
		a := pick(g.Rand, aims)
		text := a.faults
		for _, word := range slices.Sorted(maps.Keys(a.choices)) { // in order: the same seed makes the same plan
			text = strings.ReplaceAll(text, word, pick(g.Rand, a.choices[word]))
		}
		text = strings.NewReplacer("HOST", pick(g.Rand, g.shape.Hosts), "#N:", fmt.Sprintf("#%d:", 1+g.IntN(a.often))).Replace(text)
		p, err := Parse(fmt.Sprintf("plan seed=0 length=%v\n%s\n", time.Minute, text))
		if err != nil {
			panic(fmt.Sprintf("a sequence of faults: %v", err))
		}
		if hostile := func(f Fault) bool { return f.Kind.spec().hostile }; g.shape.Hostile || !slices.ContainsFunc(p.Faults, hostile) {
			return p.Faults
		}
	}
}

// classesOfClients are more events: a host's FleetLock client asks for permission, and lockkeeper gives it, before the client has the answer.
var classesOfClients = []class{{eventAsks, 8}, {eventPermitted, 2}}

// minOfClients and maxOfClients are how many more faults happen around the FleetLock clients of a fleet that has some.
const minOfClients, maxOfClients = 10, 80

// kindsAtPermission are what makes a difference next to a permission: what may take the turn away, ends a process, or delays the client.
var kindsAtPermission = []Kind{
	kindSession, kindSession, kindInhibit, kindLogind, kindUncordon, kindIntent, kindIntent, kindStop, kindReplaceNode, kindWithdraw, kindPolicy,
	kindKill, kindRestart, kindFreeze, kindCutOff, kindCrash,
}

// ofClients returns what happens to FleetLock clients, and to their hosts and the cluster when a client asks or has just been given permission.
// Often the client does not receive that permission, and asks again.
func (g *generator) ofClients() (faults []Fault) {
	c := &generator{g.Rand, g.shape, weights(func(k kind) bool { return k.client })}
	for n := logUniform(g.Rand, minOfClients, maxOfClients); float64(len(faults)) < n; {
		if g.IntN(2) == 0 {
			faults = append(faults, c.fault())
			continue
		}
		k := pick(g.Rand, kindsAtPermission)
		f := (&generator{g.Rand, g.shape, []Kind{k}}).fault()
		of := pick(g.Rand, classesOfClients)
		f.At = Trigger{Process: pick(g.Rand, g.shape.Clients), Class: of.name, N: 1 + g.IntN(of.often)}
		if g.IntN(2) == 0 {
			f.At.After = g.duration(time.Millisecond, time.Minute)
		}
		if f.On != "" {
			f.On = f.At.Process
		}
		faults = append(faults, f)
		if g.IntN(2) == 0 {
			faults = append(faults, Fault{
				At: Trigger{Process: f.At.Process, Class: eventPermitted, N: f.At.N}, Kind: kindClientHangUp, On: f.At.Process,
			})
		}
	}
	return faults
}

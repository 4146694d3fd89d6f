package virtual

import (
	"testing"
	"time"
)

// TestNotReadyAfterReboot checks that a leader waits for the node to be Ready after its reboot: the kubelet reports that it is not, right after
// its host has reported done and before the leader's promotion lands, which is then refused. The referee judges the next one.
func TestNotReadyAfterReboot(t *testing.T) {
	const faults = "n2#1:host,patch,nodes,ack,rebooting,done@landed not-ready n2 for=2m0s\n*#1:coordinator,patch,nodes,state,uncordoning delay for=1s\n"
	inBubble(t, Options{Hosts: 2, Plan: plan(t, faults)}, func(t *testing.T, f *Fleet) {
		f.Start()
		f.Stage("n2", "2.0.0")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
		if f.exec.Fired()[kindNotReady] == 0 {
			t.Error("the fault did not happen")
		}
	})
}

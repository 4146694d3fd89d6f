// Package coordinator is the part of the one instance that is elected: it
// stands for the Lease, and while it holds it, watches all Nodes, asks the
// pure core (package rollout) for a verdict on each, and writes what that
// says.
//
// What holds of two leaders: one that cannot renew sends no write once its
// renew deadline is over, which is before anybody may take the Lease; one that
// releases the Lease has sent its last write before; and no identity ever
// leads two terms. A write that was sent in time and arrives late, from inside
// the network, cannot be prevented by any of this. It is made harmless by the
// protocol: its epoch is not the Lease's, so no host commits by it, and the
// successor counts it, and takes it over or turns it back.
//
// Nothing here decides about a node. This room must not know how a host does
// what its state asks of it.
package coordinator

// Package hostupdate makes a host's HostUpdate of the host's own record: it says
// what follows the last one, and whether the difference is worth a request.
//
// Everything here is data in, data out: the time is an argument, and what came
// before is the status itself, so that a process that was killed, or a new boot,
// continues from the object as it is. No decision depends on a HostUpdate, and this
// package must not know how one is written.
package hostupdate

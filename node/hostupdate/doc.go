// Package hostupdate computes the status of a host's HostUpdate from the host's own
// record and the previous status. It also decides whether the difference is worth a
// request.
//
// All functions are pure: data in, data out. The time is an argument. A process that
// starts after a kill or a reboot continues from the status that the API server has. No
// decision depends on a HostUpdate, and this package must not know how one is written.
package hostupdate

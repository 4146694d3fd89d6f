// Package apiserver is an API server in memory, behind an [http.RoundTripper]. Programs that use client-go run against it inside of a
// testing/synctest bubble: it uses no sockets, starts no goroutines, and waits only for channels and timers, so that virtual time passes.
//
// It serves the resources that lockkeeper uses, in the way in which Kubernetes' API server does: versions, conflicts, preconditions,
// watches that expire, lists in pages, evictions that respect budgets, graceful deletion. TestSameAnswers holds the same script of requests
// against both, and lists where they differ on purpose.
//
// It has no schemas, so it accepts nearly any object that its Go type accepts. It does not check who may do what unless
// [Server.Authorize] is called, has no admission except [Server.Intercept], and has no controllers except for budgets, see
// [Server.RunBudgets].
package apiserver

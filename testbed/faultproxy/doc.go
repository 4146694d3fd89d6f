// Package faultproxy is a wire that does harm: an HTTP proxy between one process and the API server, for one identity. It
// passes everything on as it is, watches included, except where a rule says otherwise: a rule sees each request before it is
// forwarded and may hold it back, answer it, cut its connection, or call the test at an exact point of it, such as after the API
// server has carried a write out and before its writer hears of it.
//
// It writes a kubeconfig without a credential that points to itself, on loopback and in plain HTTP; the credential is the
// proxy's. A simulated host gets it by simhost's Options.Kubeconfig or CoordinatorKubeconfig.
//
// It knows requests of Kubernetes' API and nothing of lockkeeper: what a write means is said by whoever asks (Options.Label).
package faultproxy

// Package faultproxy injects faults between one process and the API server. It is an HTTP proxy for one identity. By default it passes all
// requests on unchanged, including watches. A rule sees each request before it is forwarded. The rule may delay the request, answer it, cut
// its connection, or call the test at an exact point, such as after the API server has executed a write and before the writer receives the
// answer.
//
// The proxy writes a kubeconfig without a credential that points to itself, on loopback and with plain HTTP; the proxy has the credential.
// A simulated host gets the kubeconfig in simhost's Options.Kubeconfig or CoordinatorKubeconfig.
//
// The package knows the requests of the Kubernetes API, but nothing about lockkeeper: the test gives names to writes (Options.Label).
package faultproxy

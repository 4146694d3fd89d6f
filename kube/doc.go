// Package kube is how lockkeeper talks to the API server. A [Credential] follows one
// identity's kubeconfig, renews its token, and makes a [Client] of it, which explains
// errors. A [Watch] holds the objects of one kind and keeps them up to date.
//
// It must not know what is decided, nor by which part.
package kube

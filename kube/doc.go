// Package kube is how lockkeeper talks to the API server. A [Client] follows its
// credential and explains errors; a [Watch] holds the objects of one kind and keeps
// them up to date.
//
// It must not know what is decided, nor by which part.
package kube

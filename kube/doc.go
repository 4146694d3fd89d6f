// Package kube is how lockkeeper talks to the API server. Its [Watch] keeps up
// the objects of one kind for every part of lockkeeper that follows some.
//
// It must not know what is decided, nor by which part.
package kube

// Package v1alpha1 holds lockkeeper's published words: the labels and
// annotations on a Node, the values they take, and the reasons that labels,
// logs, metrics and `lockkeeper status` have in common.
//
// It is for everybody who reads or answers lockkeeper: its own rooms, and the
// authors of hooks. A hook needs three things of it. A DaemonSet selects
// nodes by [LabelState], so that its pod runs while a node is in the stage it
// cares for; the pod reads the turn's id from [AnnotationTurn]; when its work
// is done it writes that id to its own annotation, named by [HookAnnotation].
// The id matters: a confirmation of an earlier turn confirms nothing.
//
// This room imports apimachinery and the standard library only. It must not
// know how a decision is made, nor talk to anything.
package v1alpha1

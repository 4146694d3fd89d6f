package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// owner is an entry of managedFields.
type owner struct {
	manager, sub string
	version      string // the apiVersion of the request
	operation    metav1.ManagedFieldsOperationType
	time         metav1.Time
	fields       object // as in FieldsV1: "f:" and the key, down to empty objects. Lists are atomic.
}

// unowned are the fields that no manager owns.
var unowned = []string{"apiVersion", "kind"}

var unownedMeta = []string{"name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion",
	"deletionTimestamp", "deletionGracePeriodSeconds"}

// ownable returns the part of an object that managers own.
func ownable(u object) object {
	u = maps.Clone(u)
	meta := maps.Clone(child(u, "metadata"))
	for _, k := range unowned {
		delete(u, k)
	}
	for _, k := range unownedMeta {
		delete(meta, k)
	}
	if u["metadata"] = meta; len(meta) == 0 {
		delete(u, "metadata")
	}
	return u
}

// ownable is the same for a stored object, in the form in which the kind is served.
func (k *kind) ownable(u object) object {
	if k.event {
		u = toEvents(u)
	}
	return ownable(u)
}

// leaves returns the fields of a value.
func leaves(v any) object {
	set := object{}
	if m, ok := v.(object); ok {
		for k, v := range m {
			set["f:"+k] = leavesOf(k, v)
		}
	}
	return set
}

// atomic are the objects that a manager owns as a whole.
var atomic = map[string]bool{"involvedObject": true, "regarding": true, "selector": true, "nodeSelector": true}

// leavesOf returns the fields of the value at a key.
func leavesOf(key string, v any) object {
	if atomic[key] {
		return object{}
	}
	return leaves(v)
}

// diff returns the fields that were added or changed, and those that were removed.
func diff(old, is object) (set, gone object) {
	set, gone = object{}, object{}
	for k, v := range is {
		was, had := old[k]
		m, isMap := v.(object)
		wasMap, hadMap := was.(object)
		switch {
		case isMap && hadMap && !atomic[k] && len(m) > 0 && len(wasMap) > 0:
			s, g := diff(wasMap, m)
			if len(s) > 0 {
				set["f:"+k] = s
			}
			if len(g) > 0 {
				gone["f:"+k] = g
			}
		case !had || !reflect.DeepEqual(was, v):
			set["f:"+k] = leavesOf(k, v)
		}
	}
	for k, v := range old {
		if _, has := is[k]; !has {
			gone["f:"+k] = leavesOf(k, v)
		}
	}
	return set, gone
}

// union returns the fields of both sets.
func union(a, b object) object {
	u := maps.Clone(a)
	for k, v := range b {
		if was, ok := u[k]; ok {
			u[k] = union(was.(object), v.(object))
		} else {
			u[k] = v
		}
	}
	return u
}

// minus returns the fields of a that are not in b. What is below a field of b is in b, too.
func minus(a, b object) object {
	left := object{}
	for k, v := range a {
		taken, ok := b[k]
		switch {
		case !ok:
			left[k] = v
		case len(taken.(object)) > 0 && len(v.(object)) > 0:
			if rest := minus(v.(object), taken.(object)); len(rest) > 0 {
				left[k] = rest
			}
		}
	}
	return left
}

// delta is what a write changes, in the form of FieldsV1.
type delta struct{ set, gone object }

func (d delta) empty() bool { return len(d.set)+len(d.gone) == 0 }

// changesSpec reports whether anything but metadata and, if it is a subresource, the status changes.
func (d delta) changesSpec(k *kind) bool {
	for _, set := range []object{d.set, d.gone} {
		for name := range set {
			if name != "f:metadata" && !(k.status && name == "f:status") {
				return true
			}
		}
	}
	return false
}

// change compares two versions of an object.
func (k *kind) change(old, it *item) delta {
	before := k.zero
	if old != nil {
		before = func() object { return k.ownable(old.u) }
	}
	set, gone := diff(before(), k.ownable(it.u))
	return delta{set, gone}
}

// ownership returns who owns the fields of a new version: the writer owns what it has changed.
func (s *Server) ownership(q *request, old *item, d delta) []owner {
	var was []owner
	set, gone := d.set, d.gone
	if old != nil {
		was = old.managed
	} else {
		if set = minus(set, q.k.ownerless); q.k.dropsStatus() {
			delete(set, "f:status")
		}
	}
	if len(set)+len(gone) == 0 {
		return was
	}
	lost := union(set, gone)
	return s.assign(q, was, metav1.ManagedFieldsOperationUpdate, set, func(o owner, mine bool) object {
		if mine {
			return union(minus(o.fields, gone), set)
		}
		return minus(o.fields, lost)
	})
}

// assign returns new owners: change returns the new fields of each owner, and fields are those of the writer if it has owned nothing before.
func (s *Server) assign(q *request, was []owner, op metav1.ManagedFieldsOperationType, fields object, change func(o owner, mine bool) object) []owner {
	sub := q.sub
	if sub != "status" {
		sub = ""
	}
	now := metav1.NewTime(s.now().UTC()).Rfc3339Copy()
	var all []owner
	found := false
	for _, o := range was {
		mine := o.manager == q.manager && o.operation == op && o.sub == sub
		found = found || mine
		next := change(o, mine)
		if len(next) == 0 {
			continue
		}
		if !reflect.DeepEqual(next, o.fields) {
			o.fields, o.time = next, now
		}
		all = append(all, o)
	}
	if !found && len(fields) > 0 {
		all = append(all, owner{manager: q.manager, sub: sub, version: q.k.gvr.GroupVersion().String(), operation: op, time: now, fields: fields})
	}
	return all
}

func sameOwners(a, b []owner) bool {
	return slices.EqualFunc(a, b, func(x, y owner) bool {
		return x.manager == y.manager && x.sub == y.sub && x.operation == y.operation && reflect.DeepEqual(x.fields, y.fields)
	})
}

// setManaged writes the owners into metadata.managedFields of an item that no one has seen yet.
func (it *item) setManaged() {
	entries := make([]metav1.ManagedFieldsEntry, 0, len(it.managed))
	for _, o := range it.managed {
		raw, err := json.Marshal(o.fields)
		if err != nil {
			panic(err)
		}
		e := metav1.ManagedFieldsEntry{Manager: o.manager, Operation: o.operation, APIVersion: o.version, Time: &o.time, FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{}, Subresource: o.sub}
		e.FieldsV1.SetRawBytes(raw)
		entries = append(entries, e)
	}
	it.obj.(metav1.Object).SetManagedFields(entries)
}

// apply answers a server-side apply.
func (s *Server) apply(q *request, old *item) (*item, error) {
	cfg, err := decode(q.k, "application/yaml", q.body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if q.query.Get("fieldManager") == "" {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch")})
	}
	meta := child(cfg, "metadata")
	if name := text(meta, "name"); name != "" && name != q.name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, q.name))
	}
	meta["name"] = q.name
	if q.k.namespaced {
		meta["namespace"] = q.namespace
	}
	mine := leaves(ownable(cfg))
	if old == nil {
		q.applied = s.assign(q, nil, metav1.ManagedFieldsOperationApply, mine, nil)
		return s.insert(q, cfg)
	}
	u := runtime.DeepCopyJSON(old.u)
	merge(u, cfg)
	changed, _ := diff(ownable(old.u), ownable(u))
	dropped, conflicts := object{}, []string(nil)
	for _, o := range old.managed {
		same := o.manager == q.manager && o.operation == metav1.ManagedFieldsOperationApply && o.sub == ""
		if same {
			dropped = minus(o.fields, mine)
		} else if len(minus(o.fields, changed)) < len(o.fields) || !reflect.DeepEqual(minus(o.fields, changed), o.fields) {
			conflicts = append(conflicts, o.manager)
		}
	}
	if len(conflicts) > 0 && q.query.Get("force") != "true" {
		return nil, apierrors.NewApplyConflict(nil, fmt.Sprintf("Apply failed with %d conflicts: conflicts with %s", len(conflicts), strings.Join(conflicts, ", ")))
	}
	for _, o := range old.managed {
		if o.manager != q.manager || o.operation != metav1.ManagedFieldsOperationApply {
			dropped = minus(dropped, o.fields)
		}
	}
	prune(u, dropped)
	q.applied = s.assign(q, old.managed, metav1.ManagedFieldsOperationApply, mine, func(o owner, own bool) object {
		if own {
			return mine
		}
		return minus(o.fields, union(changed, dropped))
	})
	return s.replace(q, old, u)
}

// merge sets the fields of cfg in u.
func merge(u, cfg object) {
	for k, v := range cfg {
		m, isMap := v.(object)
		was, wasMap := u[k].(object)
		if isMap && wasMap {
			merge(was, m)
		} else {
			u[k] = v
		}
	}
}

// prune removes fields from u.
func prune(u, fields object) {
	for k, below := range fields {
		k = strings.TrimPrefix(k, "f:")
		m, isMap := u[k].(object)
		if isMap && len(below.(object)) > 0 {
			if prune(m, below.(object)); len(m) > 0 {
				continue
			}
		}
		delete(u, k)
	}
}

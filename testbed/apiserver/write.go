package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errModified is the conflict of a write that names another version than that of the object.
var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// create answers a POST of an object.
func (s *Server) create(q *request) (*answer, error) {
	u, err := q.decode()
	if err != nil {
		return nil, err
	}
	meta := child(u, "metadata")
	if q.name = text(meta, "name"); q.name == "" && text(meta, "generateName") != "" {
		s.serial++
		q.name = fmt.Sprintf("%s%05d", text(meta, "generateName"), s.serial)
		meta["name"] = q.name
	}
	if q.name == "" {
		return nil, apierrors.NewInvalid(q.k.groupKind(), "", field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	if text(meta, "resourceVersion") != "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "resourceVersion should not be set on objects to be created"}}
	}
	it, err := s.insert(q, u)
	if err != nil {
		return nil, err
	}
	return q.found(http.StatusCreated, it), nil
}

// decode reads the object in the body of a request.
func (q *request) decode() (object, error) {
	u, err := decode(q.k, q.contentType, q.body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	meta := child(u, "metadata")
	if q.k.namespaced {
		if ns := text(meta, "namespace"); ns != "" && ns != q.namespace {
			return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		meta["namespace"] = q.namespace
	}
	if q.k.event {
		u = toCore(u)
	}
	return u, nil
}

// insert creates an object.
func (s *Server) insert(q *request, u object) (*item, error) {
	t := s.tables[q.k.stored()]
	if q.namespace != "" && s.tables["namespaces"].items[q.namespace] == nil {
		return nil, apierrors.NewNotFound(kindOf("namespaces").resource(), q.namespace)
	}
	if t.items[key(q.namespace, q.name)] != nil {
		return nil, apierrors.NewAlreadyExists(q.k.resource(), q.name)
	}
	meta := child(u, "metadata")
	for _, name := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"} {
		delete(meta, name)
	}
	s.serial++
	meta["uid"] = fmt.Sprintf("%08x-0000-4000-8000-%012x", s.revision, s.serial)
	meta["creationTimestamp"] = s.stamp()
	if q.k.generation {
		meta["generation"] = int64(1)
	}
	if q.k.dropsStatus() {
		delete(u, "status")
	}
	if q.k.created != nil {
		q.k.created(u)
	}
	return s.store(q, nil, u)
}

// stamp returns the server's time as it is in metadata.
func (s *Server) stamp() string { return s.now().UTC().Format(time.RFC3339) }

// store checks and commits a new version of an object; old is nil if it is created. It returns old if nothing changes.
func (s *Server) store(q *request, old *item, u object) (*item, error) {
	delete(child(u, "metadata"), "managedFields")
	it, err := newItem(q.k, u)
	if err != nil && q.verb == "patch" {
		return nil, apierrors.NewInvalid(q.k.groupKind(), q.name, field.ErrorList{field.Invalid(field.NewPath("patch"), string(q.body), err.Error())})
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", q.k.kind, q.k.gvr.Version, q.k.kind, err))
	}
	d := q.k.change(old, it)
	if it.managed = q.applied; q.applied == nil {
		it.managed = s.ownership(q, old, d)
	}
	if old != nil {
		it.bumpGeneration(q.k, old, d)
		if d.empty() && sameOwners(old.managed, it.managed) {
			return old, nil
		}
	}
	it.setManaged()
	if sized, ok := it.obj.(interface{ Size() int }); ok && sized.Size() > s.maxSize {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "etcdserver: request is too large"}}
	}
	if s.intercept != nil {
		if err := s.intercept(s.writeOf(q, old, it)); err != nil {
			return nil, err
		}
	}
	if q.dryRun {
		if old != nil {
			it.setRevision(old.rev)
		}
		return it, nil
	}
	if old != nil && it.finished() {
		s.commit(q, old, nil)
		return it, nil
	}
	s.commit(q, old, it)
	return it, nil
}

// finished reports whether an object that is being deleted has nothing left to wait for.
func (it *item) finished() bool {
	m := it.obj.(metav1.Object)
	grace := m.GetDeletionGracePeriodSeconds()
	return m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

// bumpGeneration sets the generation of a new version: it counts the changes of what the owner wants, and the beginning of a deletion.
func (it *item) bumpGeneration(k *kind, old *item, d delta) {
	if !k.generation {
		return
	}
	m, was := it.obj.(metav1.Object), old.obj.(metav1.Object)
	generation := was.GetGeneration()
	if m.GetDeletionTimestamp() != nil && was.GetDeletionTimestamp() == nil || d.changesSpec(k) {
		generation++
	}
	m.SetGeneration(generation)
	child(it.u, "metadata")["generation"] = generation
}

// update answers a PUT.
func (s *Server) update(q *request) (*answer, error) {
	u, err := q.decode()
	if err != nil {
		return nil, err
	}
	meta := child(u, "metadata")
	if name := text(meta, "name"); name != q.name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, q.name))
	}
	old, err := s.find(q)
	if err != nil && q.k.upsert && q.sub == "" {
		it, err := s.insert(q, u)
		if err != nil {
			return nil, err
		}
		return q.found(http.StatusCreated, it), nil
	}
	if err != nil {
		return nil, err
	}
	if text(meta, "resourceVersion") == "" && !q.k.blind {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: q.k.gvr.Group, Kind: q.k.gvr.Resource}, q.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	}
	it, err := s.replace(q, old, u)
	if err != nil {
		return nil, err
	}
	return q.found(http.StatusOK, it), nil
}

// replace stores u in the place of old, as far as the request may change it.
func (s *Server) replace(q *request, old *item, u object) (*item, error) {
	meta, was := child(u, "metadata"), child(old.u, "metadata")
	if version := text(meta, "resourceVersion"); version != "" && version != itoa(old.rev) {
		return nil, apierrors.NewConflict(q.k.resource(), q.name, errModified)
	}
	if uid := text(meta, "uid"); uid != "" && uid != text(was, "uid") {
		why := fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, text(was, "uid"))
		return nil, apierrors.NewConflict(q.k.resource(), q.name, errors.New(why))
	}
	for _, name := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"} {
		if v, ok := was[name]; ok {
			meta[name] = v
		} else {
			delete(meta, name)
		}
	}
	switch {
	case q.sub == "status" && q.k.custom:
		status, ok := u["status"]
		u = maps.Clone(old.u)
		u["metadata"] = maps.Clone(was)
		if delete(u, "status"); ok {
			u["status"] = status
		}
	case q.sub == "status":
		keep(u, old.u, "spec")
		if q.k.kind == "Pod" {
			keep(meta, was, "ownerReferences")
		}
	case q.k.status:
		keep(u, old.u, "status")
	}
	if q.sub == "" && q.k.custom && q.k.created != nil {
		u = runtime.DeepCopyJSON(u)
		q.k.created(u)
	}
	return s.store(q, old, u)
}

// keep gives u the value that old has.
func keep(u, old object, key string) {
	if v, ok := old[key]; ok {
		u[key] = v
	} else {
		delete(u, key)
	}
}

// delete answers a DELETE of one object.
func (s *Server) delete(q *request) (*answer, error) {
	o, err := q.deleteOptions()
	if err != nil {
		return nil, err
	}
	old, err := s.find(q)
	if err != nil {
		return nil, err
	}
	it, gone, err := s.remove(q, old, o)
	if err != nil {
		return nil, err
	}
	if gone && q.k.kind != "Pod" && q.k.kind != "ServiceAccount" {
		return q.success(old.obj.(metav1.Object).GetUID()), nil
	}
	return q.found(http.StatusOK, it), nil
}

// success answers that the object is gone.
func (q *request) success(uid types.UID) *answer {
	status := &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: q.name, Group: q.k.gvr.Group, Kind: q.k.gvr.Resource, UID: uid}}
	status.SetGroupVersionKind(statusKind)
	return &answer{code: http.StatusOK, media: q.media, body: encodeObject(q.media, status)}
}

// deleteOptions reads the options in the body or in the query of a request.
func (q *request) deleteOptions() (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{}
	var err error
	if len(q.body) > 0 {
		var u object
		if u, err = decodeAny(q.contentType, q.body); err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u, o)
		}
	} else {
		err = internalscheme.ParameterCodec.DecodeParameters(q.query, metav1.SchemeGroupVersion, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	q.dryRun = q.dryRun || len(o.DryRun) > 0
	return o, nil
}

// remove deletes an object, or marks it as being deleted. gone reports that it was deleted.
func (s *Server) remove(q *request, old *item, o *metav1.DeleteOptions) (it *item, gone bool, err error) {
	m := old.obj.(metav1.Object)
	if err := q.precondition(m, o.Preconditions); err != nil {
		return nil, false, err
	}
	grace, graceful := q.k.grace(old, o)
	if m.GetDeletionTimestamp() != nil {
		left := m.GetDeletionGracePeriodSeconds()
		switch {
		case left != nil && *left > 0 && (!graceful || o.GracePeriodSeconds == nil || *o.GracePeriodSeconds >= *left):
			return old, false, nil // a deletion can only become faster
		case left == nil || *left == 0:
			if len(m.GetFinalizers()) > 0 {
				return old, false, nil
			}
			graceful = false
		}
	}
	if graceful || len(m.GetFinalizers()) > 0 {
		u := runtime.DeepCopyJSON(old.u)
		meta := child(u, "metadata")
		meta["deletionGracePeriodSeconds"] = grace
		meta["deletionTimestamp"] = s.deletionTime(m, grace)
		final := grace == 0 && len(m.GetFinalizers()) == 0
		if old, err = s.mark(q, old, u); err != nil || !final {
			return old, false, err
		}
	}
	if s.intercept != nil {
		if err := s.intercept(s.writeOf(q, old, nil)); err != nil {
			return nil, false, err
		}
	}
	if !q.dryRun {
		s.commit(q, old, nil)
		old = old.withRevision(s.revision)
	}
	return old, true, nil
}

// deletionTime returns the time at which the grace period ends. A deletion under way began before.
func (s *Server) deletionTime(m metav1.Object, grace int64) string {
	end := s.now().Add(time.Duration(grace) * time.Second)
	if was, left := m.GetDeletionTimestamp(), m.GetDeletionGracePeriodSeconds(); was != nil && left != nil {
		end = was.Add(time.Duration(grace-*left) * time.Second)
		if now := s.now(); end.Before(now) {
			end = now
		}
	}
	return end.UTC().Format(time.RFC3339)
}

// mark stores that an object is being deleted. Unlike store, it leaves an object that has nothing to wait for in the store, for the caller to delete.
func (s *Server) mark(q *request, old *item, u object) (*item, error) {
	it, err := newItem(q.k, u)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	it.managed = old.managed
	it.bumpGeneration(q.k, old, delta{})
	it.setManaged()
	if q.dryRun {
		it.setRevision(old.rev)
		return it, nil
	}
	s.commit(q, old, it)
	return it, nil
}

// grace returns the grace period in seconds, and whether the kind has one.
func (k *kind) grace(it *item, o *metav1.DeleteOptions) (int64, bool) {
	if k.kind != "Pod" {
		return 0, false
	}
	grace, _ := at(it.u, "spec", "terminationGracePeriodSeconds").(int64)
	if o.GracePeriodSeconds != nil {
		grace = *o.GracePeriodSeconds
	}
	if phase := text(it.u, "status", "phase"); text(it.u, "spec", "nodeName") == "" || phase == "Failed" || phase == "Succeeded" {
		grace = 0
	}
	if grace < 0 {
		grace = 1
	}
	return grace, true
}

// precondition checks the preconditions of a deletion.
func (q *request) precondition(m metav1.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	resource := schema.GroupResource{Group: q.k.gvr.Group, Resource: q.k.kind}
	if p.UID != nil && *p.UID != m.GetUID() {
		return apierrors.NewConflict(resource, m.GetName(), fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, m.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != m.GetResourceVersion() {
		return apierrors.NewConflict(resource, m.GetName(), fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified",
			*p.ResourceVersion, m.GetResourceVersion()))
	}
	return nil
}

// deleteCollection answers a DELETE of all objects that the request selects.
func (s *Server) deleteCollection(q *request) (*answer, error) {
	_, sel, err := q.options()
	if err != nil {
		return nil, err
	}
	o, err := q.deleteOptions()
	if err != nil {
		return nil, err
	}
	all, _ := s.tables[q.k.stored()].atRevision(s.revision)
	var gone []*item
	for _, it := range all {
		if !sel.matches(it) {
			continue
		}
		if _, _, err := s.remove(q, it, o); err != nil {
			return nil, err
		}
		gone = append(gone, it) // as it was listed
	}
	return &answer{code: http.StatusOK, media: q.media, body: encodeList(q.k, q.media, metav1.ListMeta{ResourceVersion: itoa(s.revision)}, gone)}, nil
}

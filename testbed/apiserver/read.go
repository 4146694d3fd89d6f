package apiserver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// get answers a GET of one object.
func (s *Server) get(q *request) (*answer, error) {
	rev, err := revisionOf(q.query.Get("resourceVersion"))
	if err != nil {
		return nil, err
	}
	if rev > s.revision {
		return nil, waitError{rev}
	}
	it, err := s.find(q)
	if err != nil {
		return nil, err
	}
	return q.found(http.StatusOK, it), nil
}

// find returns the object that the request names.
func (s *Server) find(q *request) (*item, error) {
	it := s.tables[q.k.stored()].items[key(q.namespace, q.name)]
	if it == nil {
		return nil, apierrors.NewNotFound(q.k.resource(), q.name)
	}
	return it, nil
}

// found answers with an object.
func (q *request) found(code int, it *item) *answer {
	return &answer{code: code, media: q.media, body: it.encode(q.k, q.media)}
}

// options reads the parameters of a list or a watch.
func (q *request) options() (*internalversion.ListOptions, *selection, error) {
	o := &internalversion.ListOptions{}
	if err := internalscheme.ParameterCodec.DecodeParameters(q.query, metav1.SchemeGroupVersion, o); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	o.Watch = q.verb == "watch"
	if errs := validation.ValidateListOptions(o, true); len(errs) > 0 {
		return nil, nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	sel := &selection{k: q.k, namespace: q.namespace, labels: labels.Everything(), fields: fields.Everything()}
	if o.LabelSelector != nil {
		sel.labels = o.LabelSelector
	}
	if o.FieldSelector == nil {
		return o, sel, nil
	}
	var err error
	sel.fields, err = o.FieldSelector.Transform(func(field, value string) (string, string, error) {
		switch {
		case field == "metadata.name", field == "metadata.namespace" && q.k.namespaced, slices.Contains(q.k.selectable, field):
			return field, value, nil
		}
		if len(q.k.selectable) == 0 {
			return "", "", fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", field)
		}
		return "", "", fmt.Errorf("field label not supported: %s", field)
	})
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	sel.name, _ = sel.fields.RequiresExactMatch("metadata.name")
	return o, sel, nil
}

// position is the content of a continue token.
type position struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	After    string `json:"start"` // the last name of the page before
}

// list answers a list, or a page of it.
func (s *Server) list(q *request) (*answer, error) {
	o, sel, err := q.options()
	if err != nil {
		return nil, err
	}
	at, after, err := s.listRevision(o)
	if err != nil {
		return nil, err
	}
	t := s.tables[q.k.stored()]
	all, known := t.atRevision(at)
	if !known {
		return nil, s.listExpired(o, after)
	}
	if after != "" {
		i, exact := slices.BinarySearchFunc(all, after, func(it *item, name string) int { return strings.Compare(it.name, name) })
		if exact {
			i++
		}
		all = all[i:]
	}
	if q.namespace != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(it *item) bool { return !strings.HasPrefix(it.name, q.namespace+"/") })
	}
	limit := o.Limit
	if limit > 0 && s.page > 0 {
		limit = min(limit, s.page)
	}
	meta := metav1.ListMeta{ResourceVersion: itoa(at)}
	var page []*item
	for i, it := range all {
		if !sel.matches(it) {
			continue
		}
		page = append(page, it)
		if limit > 0 && int64(len(page)) == limit {
			if rest := int64(len(all) - i - 1); rest > 0 { // perhaps none of them is selected
				meta.Continue = token(position{Version: "meta.k8s.io/v1", Revision: at, After: it.name})
				if sel.labels.Empty() && sel.fields.Empty() {
					meta.RemainingItemCount = &rest
				}
			}
			break
		}
	}
	return &answer{code: http.StatusOK, media: q.media, body: encodeList(q.k, q.media, meta, page)}, nil
}

// listRevision returns the revision that a list shows, and the name after which it begins.
func (s *Server) listRevision(o *internalversion.ListOptions) (at int64, after string, err error) {
	if o.Continue != "" {
		if o.ResourceVersion != "" && o.ResourceVersion != "0" {
			return 0, "", apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		var p position
		data, err := base64.RawURLEncoding.DecodeString(o.Continue)
		if err == nil {
			err = json.Unmarshal(data, &p)
		}
		if err != nil || p.After == "" {
			return 0, "", apierrors.NewBadRequest("invalid continue token: continue key is not valid")
		}
		if p.Revision < 0 { // the token of an inconsistent list
			return s.revision, p.After, nil
		}
		if p.Revision > s.revision { // it is from before the store was rewound
			return 0, "", apierrors.NewInternalError(fmt.Errorf("etcdserver: mvcc: required revision is a future revision"))
		}
		return p.Revision, p.After, nil
	}
	rev, err := revisionOf(o.ResourceVersion)
	if err != nil {
		return 0, "", err
	}
	if rev > s.revision {
		return 0, "", waitError{rev}
	}
	exact := o.ResourceVersionMatch == metav1.ResourceVersionMatchExact || o.ResourceVersionMatch == "" && o.Limit > 0
	if rev > 0 && exact {
		return rev, "", nil
	}
	return s.revision, "", nil
}

// listExpired answers a list of a revision that is forgotten. The continue token in the answer continues with the current revision.
func (s *Server) listExpired(o *internalversion.ListOptions, after string) error {
	if o.Continue == "" {
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	}
	err := apierrors.NewResourceExpired("The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list.")
	err.ErrStatus.ListMeta.Continue = token(position{Version: "meta.k8s.io/v1", Revision: -1, After: after})
	return err
}

func token(p position) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

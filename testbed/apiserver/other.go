package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// gitVersion is the version of Kubernetes that the server claims to be.
const gitVersion = "v1.37.2"

// serveOther answers a request for anything but a resource.
func (s *Server) serveOther(user string, r *http.Request) (*answer, error) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	if r.Method == http.MethodPost {
		if path == "/apis/authentication.k8s.io/v1/selfsubjectreviews" {
			return whoAmI(user, mediaOf(r, nil)), nil
		}
		return notFoundPage, nil
	}
	switch path {
	case "/healthz", "/livez", "/readyz":
		return &answer{code: http.StatusOK, media: "text/plain; charset=utf-8", body: []byte("ok")}, nil
	case "/version":
		return asJSON(version.Info{Major: "1", Minor: "37", GitVersion: gitVersion}), nil
	case "/api":
		return asJSON(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}), nil
	case "/apis":
		return asJSON(s.groups()), nil
	}
	if gv, ok := strings.CutPrefix(path, "/apis/"); ok || path == "/api/v1" {
		if path == "/api/v1" {
			gv = "v1"
		}
		if list := s.resources(gv); len(list.APIResources) > 0 {
			return asJSON(list), nil
		}
	}
	return notFoundPage, nil
}

func asJSON(v any) *answer {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &answer{code: http.StatusOK, media: mediaJSON, body: b}
}

// groups is the discovery document of the API groups.
func (s *Server) groups() *metav1.APIGroupList {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	served := map[schema.GroupVersion]bool{authenticationv1.SchemeGroupVersion: true}
	for _, k := range kinds {
		if gv := k.gvr.GroupVersion(); gv.Group != "" && !s.absent[k.stored()] {
			served[gv] = true
		}
	}
	for _, gv := range slices.SortedFunc(maps.Keys(served), func(a, b schema.GroupVersion) int { return strings.Compare(a.Group, b.Group) }) {
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	return list
}

// resources is the discovery document of one group's version.
func (s *Server) resources(groupVersion string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		if k.gvr.GroupVersion().String() != groupVersion || s.absent[k.stored()] {
			continue
		}
		for _, sub := range []string{"", "status", "eviction", "token"} {
			if k.has(sub) {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: strings.TrimSuffix(k.gvr.Resource+"/"+sub, "/"),
					SingularName: strings.ToLower(k.kind), Namespaced: k.namespaced, Kind: k.kind,
					Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}})
			}
		}
	}
	return list
}

// whoAmI answers a SelfSubjectReview.
func whoAmI(user, media string) *answer {
	r := &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{
		Username: user, Groups: []string{"system:authenticated"}}}}
	r.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"))
	return &answer{code: http.StatusCreated, media: media, body: encodeObject(media, r)}
}

// token answers a TokenRequest for a service account. The token says who asked for it, and means nothing.
func (s *Server) token(q *request) (*answer, error) {
	u, err := decodeAny(q.contentType, q.body)
	r := &authenticationv1.TokenRequest{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u, r)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if _, err := s.find(q); err != nil {
		return nil, err
	}
	if r.Spec.ExpirationSeconds == nil {
		r.Spec.ExpirationSeconds = new(int64(3600))
	}
	s.serial++
	r.Status = authenticationv1.TokenRequestStatus{
		Token:               fmt.Sprintf("token-%d-for-%s", s.serial, q.user),
		ExpirationTimestamp: metav1.NewTime(s.now().UTC().Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second).Truncate(time.Second)),
	}
	r.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	return &answer{code: http.StatusCreated, media: q.media, body: encodeObject(q.media, r)}, nil
}

// policySchema is the schema of DisruptionPolicies in lockkeeper's manifests.
var policySchema = sync.OnceValue(func() object {
	text, err := manifests.Render(manifests.Options{})
	if err != nil {
		panic(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		u := object{}
		if err := yaml.Unmarshal([]byte(doc), &u); err != nil {
			panic(err)
		}
		if versions, ok := at(u, "spec", "versions").([]any); ok && at(u, "spec", "names", "kind") == "DisruptionPolicy" {
			return at(versions[0].(object), "schema", "openAPIV3Schema").(object)
		}
	}
	panic("the manifests define no DisruptionPolicy")
})

// withDefaults sets the defaults of a DisruptionPolicy.
func withDefaults(u object) { setDefaults(u, policySchema()) }

// setDefaults sets the schema's defaults in v.
func setDefaults(v any, schema object) {
	switch v := v.(type) {
	case object:
		properties, _ := schema["properties"].(object)
		for name, p := range properties {
			if value, ok := p.(object)["default"]; ok {
				setDefault(v, name, runtime.DeepCopyJSONValue(numbers(value)))
			}
			if value, ok := v[name]; ok {
				setDefaults(value, p.(object))
			}
		}
		if each, ok := schema["additionalProperties"].(object); ok {
			for _, value := range v {
				setDefaults(value, each)
			}
		}
	case []any:
		if each, ok := schema["items"].(object); ok {
			for _, value := range v {
				setDefaults(value, each)
			}
		}
	}
}

// numbers turns a whole number of a YAML file into the type that an API object has.
func numbers(v any) any {
	if f, ok := v.(float64); ok && f == float64(int64(f)) {
		return int64(f)
	}
	return v
}

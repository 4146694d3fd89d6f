package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// An admissionPolicy is one of the manifests' admission policies, compiled.
type admissionPolicy struct {
	name            string
	matchConditions []plugin.ConditionEvaluator // one for each
	validations     []plugin.ConditionEvaluator // one for each
	// together are all validations, and messages all messageExpressions, which the API server evaluates in one go.
	together, messages plugin.ConditionEvaluator
	spec               *admissionregistrationv1.ValidatingAdmissionPolicySpec
}

// compileAll compiles the policies of the manifests as an API server of Kubernetes 1.MINOR does, 0 for the newest that this module
// knows. The error names the expression that does not compile.
func compileAll(minor uint) ([]*admissionPolicy, error) {
	text, err := manifests.Render(manifests.Options{})
	if err != nil {
		return nil, err
	}
	var all []*admissionPolicy
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10)
	for {
		var p admissionregistrationv1.ValidatingAdmissionPolicy
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if p.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		compiled, err := compileAdmission(p.Name, &p.Spec, version(minor))
		if err != nil {
			return nil, err
		}
		all = append(all, compiled)
	}
}

// version is Kubernetes 1.MINOR, 0 the newest that this module knows.
func version(minor uint) *utilversion.Version {
	if minor == 0 {
		return environment.DefaultCompatibilityVersion()
	}
	return utilversion.MajorMinor(1, minor)
}

func compileAdmission(name string, spec *admissionregistrationv1.ValidatingAdmissionPolicySpec, v *utilversion.Version) (*admissionPolicy, error) {
	// As compilePolicy in k8s.io/apiserver/pkg/admission/plugin/policy/validating, but with the environment for new expressions,
	// which has nothing that is newer than the version.
	compiler, err := plugin.NewCompositedCompiler(environment.MustBaseEnvSet(v))
	if err != nil {
		return nil, err
	}
	withAuthorizer := plugin.OptionalVariableDeclarations{HasAuthorizer: true}
	for i := range spec.Variables {
		variable := &validating.Variable{Name: spec.Variables[i].Name, Expression: spec.Variables[i].Expression}
		if r := compiler.CompileAndStoreVariable(variable, withAuthorizer, environment.NewExpressions); r.Error != nil {
			return nil, fmt.Errorf("policy %s: variable %s: %w", name, variable.Name, r.Error)
		}
	}
	var failed error
	condition := func(options plugin.OptionalVariableDeclarations, accessors ...plugin.ExpressionAccessor) plugin.ConditionEvaluator {
		c := compiler.CompileCondition(accessors, options, environment.NewExpressions)
		failed = errors.Join(append(c.CompilationErrors(), failed)...)
		return c
	}
	out := &admissionPolicy{name: name, spec: spec}
	for i := range spec.MatchConditions {
		m := (*matchconditions.MatchCondition)(&spec.MatchConditions[i])
		out.matchConditions = append(out.matchConditions, condition(withAuthorizer, m))
	}
	var validations, messages []plugin.ExpressionAccessor
	for i := range spec.Validations {
		e := &validating.ValidationCondition{Expression: spec.Validations[i].Expression}
		validations = append(validations, e)
		out.validations = append(out.validations, condition(withAuthorizer, e))
		if m := spec.Validations[i].MessageExpression; m != "" {
			messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: m})
		}
	}
	out.together = condition(withAuthorizer, validations...)
	out.messages = condition(plugin.OptionalVariableDeclarations{}, messages...)
	if failed != nil {
		return nil, fmt.Errorf("policy %s: %w", name, failed)
	}
	return out, nil
}

// A write is a request that the API server asks policies about.
type write struct {
	user     string
	groups   []string
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
	// subresource is "status" for a write to nodes/status.
	subresource string
	old, new    runtime.Object // old is nil for one that is created
}

// A cost is what one expression took of what it may take.
type cost struct {
	expression string // what it is, for people
	cost       int64
	limit      int64
	elapsed    time.Duration
	err        error // why it has no result, such as its cost
	asks       bool  // it asks the authorizer, or a variable that it reads does
	passed     bool  // no validation in it refuses the write
}

// share is the cost as a fraction of the limit.
func (c *cost) share() float64 { return float64(c.cost) / float64(c.limit) }

// nothing allows nothing. What an authorizer says makes no difference to what asking it costs.
type nothing struct{}

func (nothing) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

// measure returns what each match condition and each validation costs for a write, evaluated alone with the variables that it
// reads, and at the end what all validations together cost, and all messages. The limit of an expression alone is that of one
// evaluation ([celconfig.PerCallLimit]), which holds for each variable that it reads too.
func (p *admissionPolicy) measure(ctx context.Context, w *write) []cost {
	op := admission.Update
	if w.old == nil {
		op = admission.Create
	}
	attributes := admission.NewAttributesRecord(w.new, w.old, w.kind, "", "n", w.resource, w.subresource, op, nil, false,
		&user.DefaultInfo{Name: w.user, Groups: w.groups})
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: w.kind,
		VersionedObject: admission.NewLazyObject(w.new), VersionedOldObject: admission.NewLazyObject(w.old)}
	request := plugin.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(w.resource), metav1.GroupVersionKind(w.kind))
	one := func(what, expression string, c plugin.ConditionEvaluator, bindings plugin.OptionalVariableBindings, limit int64) cost {
		out := evaluate(ctx, what, c, versioned, request, bindings, limit)
		out.asks = strings.Contains(expression, "authorizer.") || slices.ContainsFunc(p.spec.Variables, func(v admissionregistrationv1.Variable) bool {
			return strings.Contains(v.Expression, "authorizer.") && strings.Contains(expression, "variables."+v.Name)
		})
		return out
	}
	authorized := plugin.OptionalVariableBindings{Authorizer: nothing{}}
	var all []cost
	for i, c := range p.matchConditions {
		m := p.spec.MatchConditions[i]
		all = append(all, one(p.name+": match condition "+m.Name, m.Expression, c, authorized, celconfig.PerCallLimit))
		all[i].passed = true // which it decides about other requests
	}
	for i, c := range p.validations {
		v := p.spec.Validations[i]
		all = append(all, one(fmt.Sprintf("%s: %.60s", p.name, v.Message+v.MessageExpression), v.Expression, c, authorized, celconfig.PerCallLimit))
	}
	messages := one(p.name+": all messages", "", p.messages, plugin.OptionalVariableBindings{}, celconfig.RuntimeCELCostBudget)
	messages.passed = true
	return append(all, one(p.name+": all validations", "authorizer.", p.together, authorized, celconfig.RuntimeCELCostBudget), messages)
}

func evaluate(ctx context.Context, what string, c plugin.ConditionEvaluator, versioned *admission.VersionedAttributes,
	request *admissionv1.AdmissionRequest, bindings plugin.OptionalVariableBindings, limit int64) cost {
	const plenty = 1 << 40
	began := time.Now()
	results, left, err := c.ForInput(ctx, versioned, request, bindings, nil, plenty)
	out := cost{expression: what, limit: limit, cost: plenty - left, elapsed: time.Since(began), err: err, passed: true}
	for _, r := range results {
		out.passed = out.passed && r.EvalResult != nil && r.EvalResult.Value() == true
		if r.Error != nil && out.err == nil {
			out.err = r.Error
		}
	}
	return out
}

// Package k8s holds the modules of the Kubernetes that end-to-end tests build, and tests the shipped admission policies with its validator.
package k8s

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// oldest is the Kubernetes whose expressions the policies may use.
var oldest = version.MajorMinor(1, 33)

// policy returns a shipped policy as the API server compiles it.
func policy(t *testing.T, name string) validating.Validator {
	t.Helper()
	text, err := os.ReadFile("../../../packaging/kubernetes/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var p v1.ValidatingAdmissionPolicy
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var one v1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(document), &one); err == nil && one.Kind == "ValidatingAdmissionPolicy" && one.Name == name {
			p = one
		}
	}
	if p.Name == "" {
		t.Fatalf("there is no policy %s", name)
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(oldest))
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, x := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: x.Name, Expression: x.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.NewExpressions)
	var matches, validations []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, x := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: x.Expression, Message: x.Message, Reason: x.Reason})
	}
	compile := func(all []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(all, options, environment.NewExpressions)
	}
	matcher := matchconditions.NewMatcher(compile(matches), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	return validating.NewValidator(compile(validations), matcher, compile(nil), compile(make([]cel.ExpressionAccessor, len(validations))), p.Spec.FailurePolicy, nil)
}

// account returns a service account with a token of a node.
func account(name string, nodes ...string) user.Info {
	u := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:" + name}
	if len(nodes) > 0 {
		u.Extra = map[string][]string{"authentication.kubernetes.io/node-name": nodes}
	}
	return u
}

// A thief of the service account's token writes no events but devmgrd's, of the token's node, on pods and on that Node.
func TestOwnEvents_StolenToken_WritesEventsOfDevmgrdAndItsNodeOnly(t *testing.T) {
	validator := policy(t, "devmgrd-own-events")
	gvk, gvr := corev1.SchemeGroupVersion.WithKind("Event"), corev1.SchemeGroupVersion.WithResource("events")
	event := func(changes ...func(*corev1.Event)) *corev1.Event {
		e := &corev1.Event{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Name: "train.1", Namespace: "ml"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "ml", Name: "train"}, Reason: "DevicesAssigned", Type: "Normal",
			Source: corev1.EventSource{Component: "devmgrd", Host: "n1"}, ReportingController: "devmgrd", ReportingInstance: "n1",
		}
		for _, change := range changes {
			change(e)
		}
		return e
	}
	validate := func(t *testing.T, who user.Info, object, old *corev1.Event) (message string) {
		t.Helper()
		operation, before := admission.Create, runtime.Object(nil)
		if old != nil {
			operation, before = admission.Update, old
		}
		attributes := admission.NewAttributesRecord(object, before, gvk, object.Namespace, object.Name, gvr, "", operation, nil, false, who)
		result := validator.Validate(t.Context(), schema.GroupVersionResource(gvr), &admission.VersionedAttributes{
			Attributes: attributes, VersionedKind: gvk, VersionedObject: admission.NewLazyObject(object), VersionedOldObject: admission.NewLazyObject(before),
		}, nil, nil, 1_000_000, nil)
		for _, d := range result.Decisions {
			if d.Action == validating.ActionDeny {
				return d.Message
			}
		}
		return ""
	}
	devmgrd := account("devmgrd", "n1")
	onNode := func(name string) func(*corev1.Event) {
		return func(e *corev1.Event) { e.InvolvedObject = corev1.ObjectReference{Kind: "Node", Name: name} }
	}
	scheduler := func(e *corev1.Event) {
		e.Source, e.ReportingController, e.ReportingInstance = corev1.EventSource{}, "default-scheduler", "default-scheduler-1"
	}
	legacy := func(e *corev1.Event) { e.ReportingController, e.ReportingInstance = "", "" }
	const component, node, object = "devmgrd may write events of the component devmgrd only", "devmgrd may write events of its own node only", "devmgrd may write events on pods and on its own Node only"
	for name, c := range map[string]struct {
		who      user.Info
		now, old *corev1.Event
		want     string
	}{
		"an event on a pod":                   {devmgrd, event(), nil, ""},
		"an event on the own Node":            {devmgrd, event(onNode("n1")), nil, ""},
		"devmgrd check":                       {devmgrd, event(onNode("n1"), legacy), nil, ""},
		"one more of a series":                {devmgrd, event(func(e *corev1.Event) { e.Count = 2 }), event(), ""},
		"the scheduler's":                     {devmgrd, event(scheduler), nil, component},
		"the scheduler's in devmgrd's source": {devmgrd, event(func(e *corev1.Event) { e.ReportingController = "default-scheduler" }), nil, component},
		"the kubelet's":                       {devmgrd, event(func(e *corev1.Event) { e.Source.Component = "kubelet" }), nil, component},
		"the scheduler's, overwritten":        {devmgrd, event(), event(scheduler), component},
		"of another node":                     {devmgrd, event(func(e *corev1.Event) { e.Source.Host = "n2" }), nil, node},
		"of another instance":                 {devmgrd, event(func(e *corev1.Event) { e.ReportingInstance = "n2" }), nil, node},
		"another node's, overwritten":         {devmgrd, event(), event(func(e *corev1.Event) { e.Source.Host = "n2" }), node},
		"of no node":                          {devmgrd, event(func(e *corev1.Event) { e.Source.Host = "" }), nil, node},
		"with a token of no node":             {account("devmgrd"), event(), nil, node},
		"on another Node":                     {devmgrd, event(onNode("n2")), nil, object},
		"on a Deployment":                     {devmgrd, event(func(e *corev1.Event) { e.InvolvedObject.Kind = "Deployment" }), nil, object},
		"the scheduler's, by another account": {account("other"), event(scheduler), nil, ""},
	} {
		if got := validate(t, c.who, c.now, c.old); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A thief of the service account's token changes two conditions of pods of the token's node, and nothing else of any pod.
func TestOwnPods_StolenToken_WritesTwoConditionsOfItsNodesPodsOnly(t *testing.T) {
	validator := policy(t, "devmgrd-own-pods")
	gvk, gvr := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	pod := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "ml", Labels: map[string]string{"app": "a"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "i"}}},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}, {Type: "devmgrd.io/DevicesHealthy", Status: "True"}},
			},
		}
		for _, change := range changes {
			change(p)
		}
		return p
	}
	validate := func(who user.Info, object, old *corev1.Pod) (message string) {
		attributes := admission.NewAttributesRecord(object, old, gvk, object.Namespace, object.Name, gvr, "status", admission.Update, nil, false, who)
		result := validator.Validate(t.Context(), schema.GroupVersionResource(gvr), &admission.VersionedAttributes{
			Attributes: attributes, VersionedKind: gvk, VersionedObject: admission.NewLazyObject(object), VersionedOldObject: admission.NewLazyObject(old),
		}, nil, nil, 1_000_000, nil)
		for _, d := range result.Decisions {
			if d.Action == validating.ActionDeny {
				return d.Message
			}
		}
		return ""
	}
	devmgrd := account("devmgrd", "n1")
	set := func(of corev1.PodConditionType, status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for i, c := range p.Status.Conditions {
				if c.Type == of {
					p.Status.Conditions[i].Status = status
					return
				}
			}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: of, Status: status})
		}
	}
	twice := func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, p.Status.Conditions[1]) }
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "n2" }
	bare := func(p *corev1.Pod) { p.Status.Conditions = nil }
	many := func(p *corev1.Pod) { // as many as other controllers may leave, with long texts
		for i := range 64 {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType("example.com/" + strings.Repeat("x", i+1)), Message: strings.Repeat("m", 1024)})
		}
		for range 32 {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: strings.Repeat("c", 63), ImageID: strings.Repeat("i", 256)})
		}
	}
	const node, status, condition, metadata = "devmgrd may change the status of pods of its own node only", "devmgrd may change the conditions of pods only",
		"devmgrd may change its own conditions only", "devmgrd may not change the metadata of pods"
	for name, c := range map[string]struct {
		who      user.Info
		now, old *corev1.Pod
		want     string
	}{
		"healthy":                        {devmgrd, pod(set("devmgrd.io/DevicesHealthy", "False")), pod(), ""},
		"assigned, the first":            {devmgrd, pod(bare, set("devmgrd.io/DevicesAssigned", "True")), pod(bare), ""},
		"a pod with much":                {devmgrd, pod(many, set("devmgrd.io/DevicesHealthy", "False")), pod(many), ""},
		"devmgrd check":                  {devmgrd, pod(), pod(), ""},
		"ready":                          {devmgrd, pod(set(corev1.PodReady, "False")), pod(), condition},
		"another's condition":            {devmgrd, pod(set("example.com/gate", "True")), pod(), condition},
		"another's condition, gone":      {devmgrd, pod(bare), pod(), condition},
		"twice":                          {devmgrd, pod(twice), pod(), condition},
		"a pod of another node":          {devmgrd, pod(elsewhere, set("devmgrd.io/DevicesHealthy", "False")), pod(elsewhere), node},
		"a pod of no node":               {devmgrd, pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), node},
		"with a token of no node":        {account("devmgrd"), pod(set("devmgrd.io/DevicesHealthy", "False")), pod(), node},
		"the phase":                      {devmgrd, pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), pod(), status},
		"the address":                    {devmgrd, pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }), pod(), status},
		"the address, gone":              {devmgrd, pod(func(p *corev1.Pod) { p.Status.PodIP = "" }), pod(), status},
		"a label":                        {devmgrd, pod(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "b"} }), pod(), metadata},
		"ready, by another account":      {account("other"), pod(set(corev1.PodReady, "False")), pod(), ""},
		"the kubelet's, of another node": {&user.DefaultInfo{Name: "system:node:n2"}, pod(elsewhere, set(corev1.PodReady, "False")), pod(elsewhere), ""},
	} {
		if got := validate(c.who, c.now, c.old); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

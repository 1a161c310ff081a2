// A client of generated code: clientset, apply configurations, informers and listers that the generators of Kubernetes make from
// the types of this folder. It creates, updates, patches, applies, lists, watches and deletes objects of every kind, and
// prints "done", or what is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	applyv1alpha3 "drydock.example.com/tests/clients/go/typed/client/applyconfiguration/coordination/v1alpha3"
	"drydock.example.com/tests/clients/go/typed/client/informers/externalversions"
	"drydock.example.com/tests/clients/go/typed/client/versioned"
	"drydock.example.com/tests/clients/go/typed/coordination/v1alpha3"
)

const (
	label     = "suite.example.com/typed"
	namespace = "default"
)

var strict = metav1.FieldValidationStrict

type program struct {
	ctx     context.Context
	typed   *versioned.Clientset
	dynamic *dynamic.DynamicClient
	prefix  string
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	prefix := flag.String("prefix", "", "what the names of the objects begin with")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must("read the kubeconfig", err)
	typed, err := versioned.NewForConfig(config)
	must("make the clientset", err)
	dynamic, err := dynamic.NewForConfig(config)
	must("make the dynamic client", err)
	p := &program{ctx: ctx, typed: typed, dynamic: dynamic, prefix: *prefix}
	informers := p.startInformers()
	p.maintenances(informers)
	p.interceptors()
	p.requests(informers)
	p.collections(informers)
	informers.check()
	fmt.Println("done")
}

func must(what string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func ensure(holds bool, format string, values ...any) {
	if !holds {
		log.Fatalf(format, values...)
	}
}

// eventually waits for a condition.
func (p *program) eventually(what string, condition func() (bool, error)) {
	err := wait.PollUntilContextCancel(p.ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		return condition()
	})
	must(what, err)
}

// informers are caches of maintenances and requests, and what their handlers were told.
type informers struct {
	externalversions.SharedInformerFactory
	mutex  sync.Mutex
	seen   map[string]string
	faults []string
}

func (p *program) startInformers() *informers {
	factory := externalversions.NewSharedInformerFactoryWithOptions(p.typed, 0,
		externalversions.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = label + "=" + p.prefix }))
	i := &informers{SharedInformerFactory: factory, seen: map[string]string{}}
	coordination := factory.Coordination().V1alpha3()
	for _, informer := range []cache.SharedIndexInformer{
		coordination.NodeMaintenances().Informer(),
		coordination.EvictionRequests().Informer(),
		coordination.EvictionInterceptors().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { i.note("added", object, "") },
			UpdateFunc: func(before, after any) { i.note("changed", after, before.(metav1.Object).GetResourceVersion()) },
			DeleteFunc: func(object any) { i.note("deleted", object, "") },
		})
		must("add a handler", err)
	}
	factory.Start(p.ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(p.ctx.Done()) {
		ensure(synced, "the cache of %v has not synced", kind)
	}
	return i
}

// note records an event, and every one that does not follow the one before it.
func (i *informers) note(event string, object any, before string) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	accessor := object.(metav1.Object)
	key := fmt.Sprintf("%T %s/%s", object, accessor.GetNamespace(), accessor.GetName())
	last, known := i.seen[key]
	if known == (event == "added") || (event == "changed" && last != before) {
		i.faults = append(i.faults, fmt.Sprintf("%s was %s after %q, before %q", key, event, last, before))
	}
	if event == "deleted" {
		delete(i.seen, key)
		return
	}
	i.seen[key] = accessor.GetResourceVersion()
}

func (i *informers) check() {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	ensure(len(i.faults) == 0, "handlers: %v", i.faults)
	ensure(len(i.seen) == 0, "handlers were not told of the end of %v", i.seen)
}

func (p *program) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{label: p.prefix}}
}

// lossless checks that the types have every field of an object.
func (p *program) lossless(resource string, namespace string, object runtime.Object) {
	name := object.(metav1.Object).GetName()
	var client dynamic.ResourceInterface = p.dynamic.Resource(v1alpha3.SchemeGroupVersion.WithResource(resource))
	if namespace != "" {
		client = p.dynamic.Resource(v1alpha3.SchemeGroupVersion.WithResource(resource)).Namespace(namespace)
	}
	raw, err := client.Get(p.ctx, name, metav1.GetOptions{})
	must("read "+name, err)
	typed := reflect.New(reflect.TypeOf(object).Elem()).Interface()
	must("convert "+name, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw.Object, typed, true))
	back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	must("convert "+name+" back", err)
	ensure(contains(back, raw.Object), "the types lose fields of %s:\n%v\n%v", name, raw.Object, back)
}

// contains is whether all members of part are in whole.
func contains(whole, part any) bool {
	members, isMap := part.(map[string]any)
	others, isOtherMap := whole.(map[string]any)
	if !isMap || !isOtherMap {
		return reflect.DeepEqual(whole, part)
	}
	for name, value := range members {
		if !contains(others[name], value) {
			return false
		}
	}
	return true
}

func (p *program) maintenances(informers *informers) {
	client := p.typed.CoordinationV1alpha3().NodeMaintenances()
	lister := informers.Coordination().V1alpha3().NodeMaintenances().Lister()
	name := p.prefix + "-maintenance"
	requirement := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"none-" + name}}
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}}}
	created, err := client.Create(p.ctx, &v1alpha3.NodeMaintenance{
		ObjectMeta: p.meta(name),
		Spec: v1alpha3.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: terms},
			DrainPlan: []v1alpha3.DrainPlanEntry{{PodType: "Default", PodPriority: 7,
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
			Reason: "disk",
		},
	}, metav1.CreateOptions{FieldManager: "typed", FieldValidation: strict})
	must("create a maintenance", err)
	ensure(created.UID != "" && created.Generation == 1 && created.Spec.Stage == "Idle" && len(created.Spec.DrainPlan) == 13,
		"created: %+v", created)
	second := created.DeepCopy()
	second.ResourceVersion = ""
	_, err = client.Create(p.ctx, second, metav1.CreateOptions{})
	ensure(apierrors.IsAlreadyExists(err), "create again: %v", err)

	changed := created.DeepCopy()
	changed.Spec.Reason = "memory"
	updated, err := client.Update(p.ctx, changed, metav1.UpdateOptions{FieldManager: "typed", FieldValidation: strict})
	must("update", err)
	ensure(updated.Generation == 2 && updated.Spec.Reason == "memory", "updated: %+v", updated)
	same, err := client.Update(p.ctx, updated.DeepCopy(), metav1.UpdateOptions{FieldManager: "typed"})
	must("update without a change", err)
	ensure(same.ResourceVersion == updated.ResourceVersion, "an update without a change was written")
	_, err = client.Update(p.ctx, changed, metav1.UpdateOptions{})
	ensure(apierrors.IsConflict(err), "update an old version: %v", err)
	plan := updated.DeepCopy()
	plan.Spec.DrainPlan = plan.Spec.DrainPlan[1:]
	_, err = client.Update(p.ctx, plan, metav1.UpdateOptions{})
	ensure(apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid), "change the plan: %v", err)

	status := updated.DeepCopy()
	status.Spec.Reason = "ignored"
	nodes := int32(0)
	status.Status.SelectedNodes = &nodes
	status.Status.Conditions = []metav1.Condition{{Type: "suite.example.com/Typed", Status: metav1.ConditionTrue, Reason: "Set",
		LastTransitionTime: metav1.Now().Rfc3339Copy()}}
	status, err = client.UpdateStatus(p.ctx, status, metav1.UpdateOptions{FieldManager: "typed"})
	must("update the status", err)
	ensure(status.Generation == 2 && status.Spec.Reason == "memory" && len(status.Status.Conditions) == 1, "status: %+v", status)

	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"annotations":{"merge":"1"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/finalizers","value":["suite.example.com/typed"]}]`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"strategic":"1"}}}`,
	} {
		_, err := client.Patch(p.ctx, name, kind, []byte(patch), metav1.PatchOptions{FieldManager: "typed", FieldValidation: strict})
		must("patch as "+string(kind), err)
	}
	patched, err := client.Patch(p.ctx, name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["suite.example.com/typed"]}}`), metav1.PatchOptions{})
	must("remove the finalizer", err)
	ensure(patched.Annotations["merge"] == "1" && patched.Labels["strategic"] == "1" && len(patched.Finalizers) == 0, "patched: %+v", patched)

	fetched, err := client.Get(p.ctx, name, metav1.GetOptions{})
	must("get", err)
	ensure(reflect.DeepEqual(fetched, patched), "get: %+v\npatch: %+v", fetched, patched)
	p.lossless("nodemaintenances", "", fetched)
	p.eventually("the lister has the maintenance", func() (bool, error) {
		cached, err := lister.Get(name)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && reflect.DeepEqual(cached, fetched), err
	})

	// The status by an apply configuration, beside the condition above.
	configuration := applyv1alpha3.NodeMaintenance(name).WithStatus(applyv1alpha3.NodeMaintenanceStatus().WithConditions(
		applymetav1.Condition().WithType("suite.example.com/Applied").WithStatus(metav1.ConditionTrue).WithReason("Set").WithMessage("").
			WithLastTransitionTime(metav1.Now().Rfc3339Copy())))
	applied, err := client.ApplyStatus(p.ctx, configuration, metav1.ApplyOptions{FieldManager: "applier"})
	must("apply the status", err)
	ensure(len(applied.Status.Conditions) == 2, "applied: %+v", applied.Status)
	again, err := client.ApplyStatus(p.ctx, configuration, metav1.ApplyOptions{FieldManager: "applier"})
	must("apply the status again", err)
	ensure(again.ResourceVersion == applied.ResourceVersion, "an apply without a change was written")
}

func (p *program) interceptors() {
	client := p.typed.CoordinationV1alpha3().EvictionInterceptors()
	name := p.prefix + ".example.com"
	configuration := func(conditions ...string) *applyv1alpha3.EvictionInterceptorApplyConfiguration {
		spec := applyv1alpha3.EvictionInterceptorSpec().WithInterceptorName(name)
		for _, condition := range conditions {
			spec.WithMatchConditions(applyv1alpha3.MatchCondition().WithName(condition).WithExpression("false"))
		}
		return applyv1alpha3.EvictionInterceptor(name).WithLabels(map[string]string{label: p.prefix}).WithSpec(spec)
	}
	apply := func(manager string, force bool, configuration *applyv1alpha3.EvictionInterceptorApplyConfiguration) (*v1alpha3.EvictionInterceptor, error) {
		return client.Apply(p.ctx, configuration, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	names := func(object *v1alpha3.EvictionInterceptor) []string {
		var all []string
		for _, condition := range object.Spec.MatchConditions {
			all = append(all, condition.Name)
		}
		return all
	}
	one := configuration("first", "second")
	one.Spec.WithPriority(500).WithPodSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"app": "none"}))
	created, err := apply("one", false, one)
	must("create by apply", err)
	ensure(reflect.DeepEqual(names(created), []string{"first", "second"}), "created: %+v", created.Spec)
	both, err := apply("two", false, configuration("third"))
	must("apply another condition", err)
	ensure(reflect.DeepEqual(names(both), []string{"first", "second", "third"}), "of both: %+v", both.Spec)

	conflicting := configuration("third")
	conflicting.Spec.WithPriority(600)
	_, err = apply("two", false, conflicting)
	ensure(apierrors.IsConflict(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict), "conflict: %v", err)
	forced, err := apply("two", true, conflicting)
	must("force", err)
	ensure(*forced.Spec.Priority == 600, "forced: %+v", forced.Spec)

	// What the first manager leaves out goes, and what the second one took does not.
	left, err := apply("one", false, configuration("first"))
	must("apply less", err)
	ensure(reflect.DeepEqual(names(left), []string{"first", "third"}) && *left.Spec.Priority == 600 && left.Spec.PodSelector == nil,
		"left: %+v", left.Spec)
	owners := map[string]bool{}
	for _, entry := range left.ManagedFields {
		owners[entry.Manager+" "+string(entry.Operation)+" "+entry.APIVersion] = true
	}
	version := v1alpha3.SchemeGroupVersion.String()
	ensure(owners["one Apply "+version] && owners["two Apply "+version], "managed fields: %v", left.ManagedFields)
	p.lossless("evictioninterceptors", "", left)

	dry, err := client.Apply(p.ctx, configuration("dry"), metav1.ApplyOptions{FieldManager: "one", DryRun: []string{metav1.DryRunAll}})
	must("apply as a dry run", err)
	ensure(reflect.DeepEqual(names(dry), []string{"third", "dry"}), "dry run: %+v", dry.Spec)
	after, err := client.Get(p.ctx, name, metav1.GetOptions{})
	must("get after the dry run", err)
	ensure(reflect.DeepEqual(names(after), names(left)), "the dry run was written: %+v", after.Spec)
}

func (p *program) requests(informers *informers) {
	client := p.typed.CoordinationV1alpha3().EvictionRequests(namespace)
	lister := informers.Coordination().V1alpha3().EvictionRequests().Lister().EvictionRequests(namespace)
	for i := range 5 {
		uid := types.UID(fmt.Sprintf("7b9ed000-0000-4000-8000-%012x", i))
		configuration := applyv1alpha3.EvictionRequest(string(uid), namespace).WithLabels(map[string]string{label: p.prefix}).WithSpec(
			applyv1alpha3.EvictionRequestSpec().
				WithTarget(applyv1alpha3.EvictionTarget().WithPod(applyv1alpha3.PodReference().WithName("none").WithUID(uid))).
				WithRequesters(applyv1alpha3.Requester().WithName("typed.example.com")))
		_, err := client.Apply(p.ctx, configuration, metav1.ApplyOptions{FieldManager: "typed.example.com"})
		must("apply a request", err)
	}
	p.eventually("the controller cancels requests for a pod that is missing", func() (bool, error) {
		requests, err := lister.List(labels.Everything())
		canceled := 0
		for _, request := range requests {
			for _, condition := range request.Status.Conditions {
				if condition.Type == "Canceled" && condition.Status == metav1.ConditionTrue {
					canceled++
				}
			}
		}
		return canceled == 5, err
	})
	requests, err := lister.List(labels.Everything())
	must("list from the cache", err)
	for _, request := range requests {
		p.lossless("evictionrequests", namespace, request)
	}

	// Pages, and a watch from where they end.
	selector := label + "=" + p.prefix
	var names []string
	var version string
	for more := ""; ; {
		page, err := client.List(p.ctx, metav1.ListOptions{LabelSelector: selector, Limit: 2, Continue: more})
		must("list a page", err)
		for _, request := range page.Items {
			names = append(names, request.Name)
		}
		more, version = page.Continue, page.ResourceVersion
		if more == "" {
			break
		}
	}
	ensure(len(names) == 5, "pages: %v", names)
	watch, err := client.Watch(p.ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: version,
		FieldSelector: "metadata.name=" + names[0]})
	must("watch", err)
	defer watch.Stop()
	first, err := client.Get(p.ctx, names[0], metav1.GetOptions{})
	must("get the first", err)
	stale := types.UID("00000000-0000-4000-8000-000000000000")
	err = client.Delete(p.ctx, names[0], metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &stale}})
	ensure(apierrors.IsConflict(err), "delete another object: %v", err)
	err = client.Delete(p.ctx, names[0], metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &first.UID}})
	must("delete", err)
	for event := range watch.ResultChan() {
		request, isRequest := event.Object.(*v1alpha3.EvictionRequest)
		ensure(isRequest && request.Name == names[0], "event: %+v", event)
		if event.Type == "DELETED" {
			return
		}
	}
	log.Fatal("the watch ended before the deletion")
}

func (p *program) collections(informers *informers) {
	client := p.typed.CoordinationV1alpha3()
	selector := metav1.ListOptions{LabelSelector: label + "=" + p.prefix}
	must("delete the requests", client.EvictionRequests(namespace).DeleteCollection(p.ctx, metav1.DeleteOptions{}, selector))
	must("delete the maintenances", client.NodeMaintenances().DeleteCollection(p.ctx, metav1.DeleteOptions{}, selector))
	must("delete the interceptors", client.EvictionInterceptors().DeleteCollection(p.ctx, metav1.DeleteOptions{}, selector))
	listers := informers.Coordination().V1alpha3()
	p.eventually("the caches are empty", func() (bool, error) {
		requests, err := listers.EvictionRequests().Lister().List(labels.Everything())
		must("list requests", err)
		maintenances, err := listers.NodeMaintenances().Lister().List(labels.Everything())
		must("list maintenances", err)
		interceptors, err := listers.EvictionInterceptors().Lister().List(labels.Everything())
		return len(requests)+len(maintenances)+len(interceptors) == 0, err
	})
	// Handlers run after the caches have changed.
	p.eventually("the handlers are told", func() (bool, error) {
		informers.mutex.Lock()
		defer informers.mutex.Unlock()
		return len(informers.seen) == 0, nil
	})
}

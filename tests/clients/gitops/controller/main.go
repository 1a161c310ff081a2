// A small controller on controller-runtime: a manager started as envtest's users start it, typed objects from its cache, an apply
// of an annotation, and status writes by update and by apply. It runs until every maintenance that it made was reconciled, and
// checks that its cache has seen its own writes. It prints "done", or what is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	label      = "suite.example.com/controller"
	annotation = "suite.example.com/seen"
	finalizer  = "suite.example.com/controller"
	updated    = "suite.example.com/Updated"
	applied    = "suite.example.com/Applied"
)

var version = schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1alpha3"}

// NodeMaintenance has the fields that this controller uses.
type NodeMaintenance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitempty"`
}

// Spec has all that this controller sets.
type Spec struct {
	NodeSelector *corev1.NodeSelector `json:"nodeSelector"`
	Stage        string               `json:"stage,omitempty"`
	DrainPlan    []DrainPlanEntry     `json:"drainPlan,omitempty"`
	Reason       string               `json:"reason,omitempty"`
}

// DrainPlanEntry is an entry of a plan.
type DrainPlanEntry struct {
	PodType     string                `json:"podType"`
	PodPriority int32                 `json:"podPriority"`
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// Status has the conditions alone.
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeMaintenanceList is a list.
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeMaintenance `json:"items"`
}

// DeepCopyObject copies what this program changes.
func (m *NodeMaintenance) DeepCopyObject() runtime.Object {
	out := *m
	m.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.NodeSelector = m.Spec.NodeSelector.DeepCopy()
	out.Spec.DrainPlan = append([]DrainPlanEntry(nil), m.Spec.DrainPlan...)
	out.Status.Conditions = append([]metav1.Condition(nil), m.Status.Conditions...)
	return &out
}

// DeepCopyObject copies the items.
func (l *NodeMaintenanceList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = make([]NodeMaintenance, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*NodeMaintenance)
	}
	return &out
}

type reconciler struct {
	client.Client
	mutex     sync.Mutex
	completed map[string]bool
}

// Reconcile brings an object one step further; each write leads to the next call.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object NodeMaintenance
	if err := r.Get(ctx, request.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if object.Labels[label] == "" {
		return ctrl.Result{}, nil
	}
	if !object.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(&object, finalizer) {
			return ctrl.Result{}, r.Update(ctx, &object)
		}
		return ctrl.Result{}, nil
	}
	condition := metav1.Condition{Status: metav1.ConditionTrue, Reason: "Seen", ObservedGeneration: object.Generation}
	switch {
	case object.Annotations[annotation] == "":
		return ctrl.Result{}, r.applyMetadata(ctx, object.Name)
	case !meta.IsStatusConditionTrue(object.Status.Conditions, updated):
		condition.Type = updated
		meta.SetStatusCondition(&object.Status.Conditions, condition)
		return ctrl.Result{}, r.Status().Update(ctx, &object)
	case !meta.IsStatusConditionTrue(object.Status.Conditions, applied):
		condition.Type = applied
		condition.LastTransitionTime = metav1.Now()
		return ctrl.Result{}, r.applyCondition(ctx, object.Name, condition)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.completed[object.Name] = true
	return ctrl.Result{}, nil
}

func configuration(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(version.WithKind("NodeMaintenance"))
	object.SetName(name)
	return object
}

func (r *reconciler) applyMetadata(ctx context.Context, name string) error {
	object := configuration(name)
	object.SetAnnotations(map[string]string{annotation: "true"})
	object.SetFinalizers([]string{finalizer})
	return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("suite-controller"))
}

func (r *reconciler) applyCondition(ctx context.Context, name string, condition metav1.Condition) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
	if err != nil {
		return err
	}
	object := configuration(name)
	if err := unstructured.SetNestedSlice(object.Object, []any{fields}, "status", "conditions"); err != nil {
		return err
	}
	return r.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("suite-controller"))
}

func maintenance(name string) *NodeMaintenance {
	return &NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}},
		Spec: Spec{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"none-" + name},
			}},
		}}}},
	}
}

// eventually waits for a condition; conflicts and objects that the cache does not have yet are not errors.
func eventually(ctx context.Context, what string, condition func(context.Context) (bool, error)) {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ok, err := condition(ctx)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return false, nil
		}
		return ok, err
	})
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func main() {
	// controller-runtime registers --kubeconfig, which ctrl.GetConfig reads.
	prefix := flag.String("prefix", "", "what the names of the maintenances begin with")
	count := flag.Int("count", 10, "how many")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	config, err := clientcmd.BuildConfigFromFlags("", flag.Lookup("kubeconfig").Value.String())
	if err != nil {
		log.Fatal(err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, &NodeMaintenance{}, &NodeMaintenanceList{})
	metav1.AddToGroupVersion(scheme, version)

	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		log.Fatal(err)
	}
	r := &reconciler{Client: manager.GetClient(), completed: map[string]bool{}}
	if err := ctrl.NewControllerManagedBy(manager).For(&NodeMaintenance{}).Named("suite").Complete(r); err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		log.Fatal("the cache has not synced")
	}

	for i := range *count {
		if err := r.Create(ctx, maintenance(fmt.Sprintf("%s-%d", *prefix, i))); err != nil {
			log.Fatal("create: ", err)
		}
	}
	eventually(ctx, "every maintenance is reconciled", func(context.Context) (bool, error) {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		return len(r.completed) == *count, nil
	})
	check(ctx, manager, *prefix, *count)

	if err := r.DeleteAllOf(ctx, &NodeMaintenance{}, client.MatchingLabels{label: "true"}); err != nil {
		log.Fatal("delete: ", err)
	}
	eventually(ctx, "the cache is empty after the finalizers went", func(ctx context.Context) (bool, error) {
		var list NodeMaintenanceList
		err := r.List(ctx, &list, client.MatchingLabels{label: "true"})
		return len(list.Items) == 0, err
	})
	stop()
	if err := <-ended; err != nil {
		log.Fatal("stop: ", err)
	}
	fmt.Println("done")
}

// check compares the objects of the cache with those of the server, and the owners of their fields with who wrote them.
func check(ctx context.Context, manager ctrl.Manager, prefix string, count int) {
	for i := range count {
		key := client.ObjectKey{Name: fmt.Sprintf("%s-%d", prefix, i)}
		var live NodeMaintenance
		if err := manager.GetAPIReader().Get(ctx, key, &live); err != nil {
			log.Fatal(err)
		}
		if live.Generation != 1 || len(live.Status.Conditions) != 2 || len(live.Spec.DrainPlan) != 12 {
			log.Fatalf("%s: generation %d, conditions %v, %d plan entries",
				key.Name, live.Generation, live.Status.Conditions, len(live.Spec.DrainPlan))
		}
		owners := map[string]bool{}
		for _, entry := range live.ManagedFields {
			if entry.Manager == "suite-controller" {
				owners[string(entry.Operation)+" "+entry.Subresource] = true
			}
		}
		if !owners["Apply "] || !owners["Apply status"] {
			log.Fatalf("%s: managed fields %v", key.Name, live.ManagedFields)
		}
		eventually(ctx, "the cache has the newest "+key.Name, func(ctx context.Context) (bool, error) {
			var cached NodeMaintenance
			err := manager.GetClient().Get(ctx, key, &cached)
			return cached.ResourceVersion == live.ResourceVersion, err
		})
	}
}

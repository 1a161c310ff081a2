// What Argo CD does with a set of manifests, by the engine that it is built on: sync by server-side or client-side apply, find
// differences, judge health, correct drift, prune, and keep a cache of the cluster, here one for each version of our group. The
// manifests come from standard input. It prints "done", or what is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/cache"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/engine"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/health"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync/common"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/tracing"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2/textlogger"
)

const (
	group   = "coordination.k8s.io"
	manager = "argocd-controller"
	mark    = "argocd.argoproj.io/tracking-id"
	team    = "example.com/team"
)

var logger = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(os.Stderr)))

// versionOf is kubectl as the engine uses it, for a cache that follows one version of our group alone. The engine would follow
// the preferred one.
type versionOf struct {
	*kube.KubectlCmd
	version string
}

func (k versionOf) GetAPIResources(config *rest.Config, _ bool, filter kube.ResourceFilter) ([]kube.APIResourceInfo, error) {
	all, err := k.KubectlCmd.GetAPIResources(config, false, filter)
	var served []kube.APIResourceInfo
	for _, resource := range all {
		version := resource.GroupVersionResource
		if version.Group == group && version.Version == k.version {
			served = append(served, resource)
		}
	}
	return served, err
}

// application is what Argo CD knows of a set of manifests: its name, and how they are applied.
type application struct {
	config     *rest.Config
	name       string
	onServer   bool
	caches     map[string]cache.ClusterCache
	engine     engine.GitOpsEngine
	kubectl    *kube.KubectlCmd
	comparison []diff.Option
}

func (a *application) isManaged(resource *cache.Resource) bool {
	return resource.Resource != nil && resource.Resource.GetAnnotations()[mark] == a.name
}

// sync applies the targets and expects this result of each object, and of as many objects as it names.
func (a *application) sync(ctx context.Context, step string, targets []*unstructured.Unstructured, expected map[common.ResultCode]int) {
	options := []sync.SyncOpt{
		sync.WithPrune(true),
		sync.WithManifestValidation(true),
		sync.WithServerSideApply(a.onServer),
		sync.WithServerSideApplyManager(manager),
		sync.WithLogr(logger),
	}
	results, err := a.engine.Sync(ctx, copies(targets), a.isManaged, step, "", options...)
	if err != nil {
		log.Fatalf("%s: %v", step, err)
	}
	counted := map[common.ResultCode]int{}
	for _, result := range results {
		counted[result.Status]++
	}
	if fmt.Sprint(counted) != fmt.Sprint(expected) {
		log.Fatalf("%s: %v, expected %v: %+v", step, counted, expected, results)
	}
}

// live reads an object from the server.
func (a *application) live(ctx context.Context, target *unstructured.Unstructured) *unstructured.Unstructured {
	object, err := a.kubectl.GetResource(ctx, a.config, target.GroupVersionKind(), target.GetName(), "")
	if err != nil {
		log.Fatalf("get %s: %v", target.GetName(), err)
	}
	return object
}

// compare expects that the server's prediction of the next apply differs from the object, or not.
func (a *application) compare(ctx context.Context, step string, target *unstructured.Unstructured, isModified bool) {
	live := a.live(ctx, target)
	result, err := diff.Diff(target.DeepCopy(), live, a.comparison...)
	if err != nil {
		log.Fatalf("%s: %s: %v", step, target.GetName(), err)
	}
	if result.Modified != isModified {
		log.Fatalf("%s: %s: modified: %t\nlive:      %s\npredicted: %s",
			step, target.GetName(), result.Modified, result.NormalizedLive, result.PredictedLive)
	}
}

// compareLocally expects that the comparison without the server finds the object modified, or not.
func compareLocally(step string, target, live *unstructured.Unstructured, isModified bool) {
	result, err := diff.Diff(target.DeepCopy(), live, diff.WithLogr(logger))
	if err != nil {
		log.Fatalf("%s: %s: %v", step, target.GetName(), err)
	}
	if result.Modified != isModified {
		log.Fatalf("%s: %s: modified without the server: %t\nlive:      %s\npredicted: %s",
			step, target.GetName(), result.Modified, result.NormalizedLive, result.PredictedLive)
	}
}

// followed waits until each cache has exactly these objects of the application, in its version, as they are at the server.
func (a *application) followed(ctx context.Context, step string, targets []*unstructured.Unstructured) {
	for version, clusterCache := range a.caches {
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			expected := map[kube.ResourceKey]string{}
			for _, target := range targets {
				key := kube.GetResourceKey(target)
				if _, err := clusterCache.IsNamespaced(key.GroupKind()); err == nil {
					expected[key] = a.live(ctx, target).GetResourceVersion()
				}
			}
			found := map[kube.ResourceKey]string{}
			for key, resource := range clusterCache.FindResources("", a.isManaged) {
				if resource.Ref.APIVersion != group+"/"+version {
					return false, fmt.Errorf("%s in %s", resource.Ref.Name, resource.Ref.APIVersion)
				}
				found[key] = resource.ResourceVersion
			}
			return fmt.Sprint(found) == fmt.Sprint(expected), nil
		})
		if err != nil {
			log.Fatalf("%s: the cache of %s: %v", step, version, err)
		}
	}
}

func copies(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	copied := make([]*unstructured.Unstructured, 0, len(objects))
	for _, object := range objects {
		copied = append(copied, object.DeepCopy())
	}
	return copied
}

// withPlanOf is the target with the plan of the live object: complete, as the server stores it.
func withPlanOf(live, target *unstructured.Unstructured) *unstructured.Unstructured {
	complete := target.DeepCopy()
	plan, found, err := unstructured.NestedSlice(live.Object, "spec", "drainPlan")
	if err != nil || !found {
		log.Fatalf("%s has no plan: %v", live.GetName(), err)
	}
	if err := unstructured.SetNestedSlice(complete.Object, plan, "spec", "drainPlan"); err != nil {
		log.Fatal(err)
	}
	return complete
}

// checkHealth expects that the engine, which has no rule for our kinds, takes every object for healthy, and our APIServices by
// its rule for them.
func (a *application) checkHealth(ctx context.Context, targets []*unstructured.Unstructured) {
	for _, target := range targets {
		status, err := health.GetResourceHealth(a.live(ctx, target), nil)
		if err != nil || status != nil {
			log.Fatalf("health of %s: %v %v", target.GetName(), status, err)
		}
	}
	services := schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}
	for version := range a.caches {
		service, err := a.kubectl.GetResource(ctx, a.config, services, version+"."+group, "")
		if err != nil {
			log.Fatal(err)
		}
		status, err := health.GetResourceHealth(service, nil)
		if err != nil || status == nil || status.Status != health.HealthStatusHealthy {
			log.Fatalf("health of %s: %v %v", service.GetName(), status, err)
		}
	}
}

// run goes through the life of the application: the first target has a plan that the server completes.
func (a *application) run(ctx context.Context, targets []*unstructured.Unstructured) {
	synced := map[common.ResultCode]int{common.ResultCodeSynced: len(targets)}
	a.sync(ctx, "sync", targets, synced)
	a.followed(ctx, "sync", targets)
	a.checkHealth(ctx, targets)
	before := map[string]string{}
	for _, target := range targets {
		a.compare(ctx, "after the sync", target, false)
		live := a.live(ctx, target)
		before[target.GetName()] = live.GetResourceVersion()
		// Without the server nothing can know of the entries that it adds.
		isPlan := target.GetKind() == "NodeMaintenance"
		compareLocally("after the sync", target, live, isPlan)
		if isPlan {
			compareLocally("with a complete plan", withPlanOf(live, target), live, false)
		}
	}
	a.sync(ctx, "sync again", targets, synced)
	for _, target := range targets {
		if version := a.live(ctx, target).GetResourceVersion(); version != before[target.GetName()] {
			log.Fatalf("a sync without a change wrote %s", target.GetName())
		}
	}

	for _, target := range targets {
		patch := []byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:"changed"}}}`, team))
		if _, err := a.kubectl.PatchResource(ctx, a.config, target.GroupVersionKind(), target.GetName(), "", types.MergePatchType, patch); err != nil {
			log.Fatal("drift: ", err)
		}
		a.compare(ctx, "drift", target, true)
	}
	a.followed(ctx, "drift", targets)
	a.sync(ctx, "correction", targets, synced)
	for _, target := range targets {
		a.compare(ctx, "after the correction", target, false)
	}
	a.followed(ctx, "correction", targets)

	kept := targets[:1]
	a.sync(ctx, "prune", kept, map[common.ResultCode]int{common.ResultCodeSynced: 1, common.ResultCodePruned: len(targets) - 1})
	a.followed(ctx, "prune", kept)
	a.sync(ctx, "prune all", nil, map[common.ResultCode]int{common.ResultCodePruned: 1})
	a.followed(ctx, "prune all", nil)
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	onServer := flag.Bool("server-side", false, "apply on the server")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	manifests, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	targets, err := kube.SplitYAML(manifests)
	if err != nil {
		log.Fatal(err)
	}
	a := &application{
		config:   config,
		name:     targets[0].GetName(),
		onServer: *onServer,
		caches:   map[string]cache.ClusterCache{},
		kubectl:  &kube.KubectlCmd{Log: logger, Tracer: tracing.NopTracer{}},
	}
	for _, target := range targets {
		annotations := target.GetAnnotations()
		annotations[mark] = a.name
		target.SetAnnotations(annotations)
	}
	for _, version := range []string{"v1alpha3", "v1alpha1"} {
		clusterCache := cache.NewClusterCache(config,
			cache.SetKubectl(versionOf{a.kubectl, version}),
			cache.SetLogr(logger),
			cache.SetPopulateResourceInfoHandler(func(*unstructured.Unstructured, bool) (any, bool) { return nil, true }),
		)
		if err := clusterCache.EnsureSynced(); err != nil {
			log.Fatalf("the cache of %s: %v", version, err)
		}
		a.caches[version] = clusterCache
	}
	preferred := a.caches["v1alpha3"]
	a.engine = engine.NewEngine(config, preferred, engine.WithLogr(logger))
	stop, err := a.engine.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	applier, cleanup, err := a.kubectl.ManageServerSideDiffDryRuns(config)
	if err != nil {
		log.Fatal(err)
	}
	defer cleanup()
	a.comparison = []diff.Option{
		diff.WithLogr(logger),
		diff.WithServerSideDiff(true),
		diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(applier)),
		diff.WithManager(manager),
		diff.WithGVKParser(preferred.GetGVKParser()),
	}
	a.run(ctx, targets)
	fmt.Println("done")
}

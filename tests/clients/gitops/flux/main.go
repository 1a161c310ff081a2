// What Flux' kustomize-controller does with a set of manifests, by the package that it uses for it: apply in stages, apply again
// without a change, detect and correct drift, wait for readiness, prune, and wait for the end. The manifests come from standard
// input, cluster-scoped objects of our kinds among them. It prints "done", or what is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

const group = "coordination.k8s.io"

// expect fails unless every object had this outcome.
func expect(step string, changes *ssa.ChangeSet, err error, action ssa.Action, count int) {
	if err != nil {
		log.Fatalf("%s: %v", step, err)
	}
	if len(changes.Entries) != count {
		log.Fatalf("%s: %d outcomes for %d objects", step, len(changes.Entries), count)
	}
	for _, entry := range changes.Entries {
		if entry.Action != action {
			log.Fatalf("%s: %s was %s, not %s", step, entry.Subject, entry.Action, action)
		}
	}
}

// drift lets another field manager change a field that the manifest sets, and one that it does not.
func drift(ctx context.Context, c client.Client, object *unstructured.Unstructured) {
	live := object.DeepCopy()
	patch := client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"app.kubernetes.io/part-of":"changed","example.com/foreign":"kept"}}}`))
	if err := c.Patch(ctx, live, patch, client.FieldOwner("someone-else")); err != nil {
		log.Fatal("drift: ", err)
	}
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctrllog.SetLogger(zap.New(zap.WriteTo(os.Stderr)))

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	manager := ssa.NewResourceManager(c, polling.NewStatusPoller(c, c.RESTMapper(), polling.Options{}), ssa.Owner{
		Field: "kustomize-controller",
		Group: "kustomize.toolkit.fluxcd.io",
	})
	objects, err := utils.ReadObjects(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	if err := normalize.UnstructuredList(objects); err != nil {
		log.Fatal(err)
	}
	manager.SetOwnerLabels(objects, "maintenances", "flux-system")

	options := ssa.DefaultApplyOptions()
	changes, err := manager.ApplyAllStaged(ctx, objects, options)
	expect("apply", changes, err, ssa.CreatedAction, len(objects))
	changes, err = manager.ApplyAllStaged(ctx, objects, options)
	expect("apply again", changes, err, ssa.UnchangedAction, len(objects))

	for _, object := range objects {
		if object.GroupVersionKind().Group != group {
			continue
		}
		step := object.GetKind() + " " + object.GetName()
		entry, _, _, err := manager.Diff(ctx, object, ssa.DefaultDiffOptions())
		if err != nil || entry.Action != ssa.UnchangedAction {
			log.Fatalf("%s: a difference without a change: %v %v", step, entry, err)
		}
		drift(ctx, c, object)
		entry, live, merged, err := manager.Diff(ctx, object, ssa.DefaultDiffOptions())
		if err != nil || entry.Action != ssa.ConfiguredAction {
			log.Fatalf("%s: the drift is not seen: %v %v", step, entry, err)
		}
		if live.GetLabels()["app.kubernetes.io/part-of"] != "changed" ||
			merged.GetLabels()["app.kubernetes.io/part-of"] == "changed" {
			log.Fatalf("%s: live %v, merged %v", step, live.GetLabels(), merged.GetLabels())
		}
		entry, err = manager.Apply(ctx, object, options)
		if err != nil || entry.Action != ssa.ConfiguredAction {
			log.Fatalf("%s: the drift is not corrected: %v %v", step, entry, err)
		}
		now := object.DeepCopy()
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), now); err != nil {
			log.Fatal(err)
		}
		if labels := now.GetLabels(); labels["app.kubernetes.io/part-of"] == "changed" || labels["example.com/foreign"] != "kept" {
			log.Fatalf("%s: labels after the correction: %v", step, labels)
		}
	}

	wait := ssa.DefaultWaitOptions()
	wait.Interval = 100 * time.Millisecond
	if err := manager.Wait(objects, wait); err != nil {
		log.Fatal("wait: ", err)
	}
	remove := ssa.DefaultDeleteOptions()
	remove.Inclusions = manager.GetOwnerLabels("maintenances", "flux-system")
	changes, err = manager.DeleteAll(ctx, objects, remove)
	expect("prune", changes, err, ssa.DeletedAction, len(objects))
	if err := manager.WaitForTermination(objects, wait); err != nil {
		log.Fatal("wait for the end: ", err)
	}
	fmt.Println("done")
}

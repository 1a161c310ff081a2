// The requests of Terraform's kubernetes_manifest for a NodeMaintenance whose plan is completed by the server: a server-side
// apply as a dry run for the plan, the same apply for real, and both again at the next run. The provider fails with "provider
// produced inconsistent result after apply" where the two differ, and shows a change for ever where the second run does. It
// prints "done", or what is wrong.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

var resource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1alpha3", Resource: "nodemaintenances"}

// manifest has one entry of a drain plan; the server adds the rest.
func manifest(name, reason string) []byte {
	out, err := json.Marshal(map[string]any{
		"apiVersion": "coordination.k8s.io/v1alpha3",
		"kind":       "NodeMaintenance",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"reason": reason,
			"nodeSelector": map[string]any{"nodeSelectorTerms": []any{map[string]any{
				"matchExpressions": []any{map[string]any{
					"key": "kubernetes.io/hostname", "operator": "In", "values": []any{"none-" + name},
				}},
			}}},
			"drainPlan": []any{map[string]any{
				"podSelector": map[string]any{"matchLabels": map[string]any{"app": "batch"}},
				"podPriority": 100,
				"podType":     "Default",
			}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return out
}

// comparable drops what the provider does not compare: it keeps the attributes of the type, without the bookkeeping.
func comparable(object *unstructured.Unstructured) map[string]any {
	kept := object.DeepCopy().Object
	metadata := kept["metadata"].(map[string]any)
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		delete(metadata, field)
	}
	delete(kept, "status")
	return kept
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	name := flag.String("name", "", "the name of the maintenance")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	objects := client.Resource(resource)
	apply := func(step, reason string, dryRun bool) *unstructured.Unstructured {
		options := metav1.PatchOptions{FieldManager: "Terraform", FieldValidation: "Strict"}
		if dryRun {
			options.DryRun = []string{metav1.DryRunAll}
		}
		object, err := objects.Patch(ctx, *name, types.ApplyPatchType, manifest(*name, reason), options)
		if err != nil {
			log.Fatalf("%s: %v", step, err)
		}
		return object
	}
	for _, reason := range []string{"kernel update", "firmware update"} {
		planned := apply("plan", reason, true)
		entries, _, _ := unstructured.NestedSlice(planned.Object, "spec", "drainPlan")
		if len(entries) < 2 {
			log.Fatalf("plan: the server completed nothing: %v", entries)
		}
		applied := apply("apply", reason, false)
		if !reflect.DeepEqual(comparable(planned), comparable(applied)) {
			log.Fatalf("inconsistent result after apply:\nplanned %v\napplied %v", planned.Object, applied.Object)
		}
		for _, dryRun := range []bool{true, false} {
			again := apply("again", reason, dryRun)
			if again.GetResourceVersion() != applied.GetResourceVersion() {
				log.Fatalf("a second run (dry run: %t) changes %s to %s", dryRun, applied.GetResourceVersion(), again.GetResourceVersion())
			}
		}
	}
	if err := objects.Delete(ctx, *name, metav1.DeleteOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("done")
}

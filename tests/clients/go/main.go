// A client-go informer on one resource of coordination.k8s.io/v1alpha3. It prints one JSON object per line
// for each event that a controller would handle: {"type","name","resourceVersion"}.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

type event struct {
	Type            string `json:"type"`
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	resource := flag.String("resource", "", "the plural to watch")
	selector := flag.String("selector", "", "the label selector of the objects")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, v1.NamespaceAll,
		func(options *v1.ListOptions) { options.LabelSelector = *selector })
	served := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1alpha3", Resource: *resource}
	informer := factory.ForResource(served).Informer()

	out := json.NewEncoder(os.Stdout)
	say := func(kind string, object v1.Object) {
		if err := out.Encode(event{kind, object.GetName(), object.GetResourceVersion()}); err != nil {
			log.Fatal(err)
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { say("ADDED", object.(v1.Object)) },
		UpdateFunc: func(before, after any) {
			// After a relist the informer repeats all objects; controllers ignore those.
			if before.(v1.Object).GetResourceVersion() != after.(v1.Object).GetResourceVersion() {
				say("MODIFIED", after.(v1.Object))
			}
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			say("DELETED", object.(v1.Object))
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan struct{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		close(stop)
	}()
	informer.Run(stop)
}

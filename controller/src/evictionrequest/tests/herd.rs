//! A thousand pods wait for one budget, whose places are freed one by one.

use super::*;
use std::sync::atomic::AtomicUsize;

const PODS: usize = 1_000;

/// The host and the server: what they store is what the controller's stores have.
struct World {
    stores: Stores,
    /// How many pods the budget lets go now, and its version.
    budget: Mutex<(i32, usize)>,
    evictions: AtomicUsize,
}

impl World {
    fn new() -> Self {
        let world = Self {
            stores: empty_stores(),
            budget: Mutex::new((0, 0)),
            evictions: AtomicUsize::new(0),
        };
        for number in 0..PODS {
            let (name, uid) = (format!("web-{number}"), format!("uid-{number}"));
            let mut pod = pod();
            (pod.metadata.name, pod.metadata.uid) = (Some(name.clone()), Some(uid.clone()));
            world.stores.pods.put(pod);
            let mut request = request(&json!({}));
            request["metadata"]["name"] = json!(uid);
            request["spec"]["target"]["pod"] = json!({"name": name, "uid": uid});
            world.stores.requests.put(typed(request));
        }
        world.set_places(0);
        world
    }

    /// Sets how many pods the budget lets go, and returns the change that a watch delivers.
    fn set_places(&self, places: i32) -> Change<PodDisruptionBudget> {
        let mut state = self.budget.lock().unwrap();
        *state = (places, state.1 + 1);
        let mut object = budget("db", places);
        object["metadata"]["resourceVersion"] = json!(state.1.to_string());
        let new: PodDisruptionBudget = typed(object);
        let old = self.stores.budgets.put(new.clone());
        Change {
            old,
            new: Some(Arc::new(new)),
        }
    }

    fn evict(&self, pod: &str) -> (u16, Value) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        let places = self.budget.lock().unwrap().0;
        if places == 0 {
            return blocked_by_budget();
        }
        self.set_places(places - 1);
        self.stores.pods.delete("shop", pod);
        accepted()
    }

    fn patch(&self, name: &str, body: &Value) -> (u16, Value) {
        let current = self.stores.requests.get("shop", name).unwrap();
        let version = current.metadata.resource_version.clone().unwrap();
        if body["metadata"]["resourceVersion"] != json!(version) {
            return failure(409, "Conflict", "modified", json!({}));
        }
        let mut object = json!({
            "apiVersion": "coordination.k8s.io/v1alpha3", "kind": "EvictionRequest",
            "metadata": current.metadata, "spec": current.spec, "status": current.status,
        });
        merge(&mut object, body);
        let next = version.parse::<u64>().unwrap() + 1;
        object["metadata"]["resourceVersion"] = json!(next.to_string());
        self.stores.requests.put(typed(object.clone()));
        (200, object)
    }

    fn respond(&self, request: &ReceivedRequest) -> (u16, Value) {
        let parts: Vec<&str> = request.path.split('/').collect();
        let owner = parts[parts.len() - 2];
        match (request.method.as_str(), request.last_segment()) {
            ("POST", "eviction") => self.evict(owner),
            ("PATCH", "status") => self.patch(owner, &request.body),
            _ => fixtures::not_found(),
        }
    }
}

/// Reconciles what is queued until nothing is.
async fn settle(controller: &Controller) {
    controller.queue.enqueue_due();
    while let Some(key) = controller.queue.try_next() {
        let outcome = controller.reconcile(key.clone()).await;
        controller.queue.done(&key, outcome);
    }
}

#[tokio::test]
async fn freed_place_costs_few_evictions() {
    let world = Arc::new(World::new());
    let clock = clock_at(1_000_000);
    let (clients, received) = api_double({
        let world = Arc::clone(&world);
        move |request| world.respond(request)
    });
    let context = context(world.stores.clone(), clients, &clock);
    let queue = WorkQueue::new(Arc::clone(&context.clock), context.metrics.queue("test"));
    let options = Options::default();
    let controller = Controller::new(
        context,
        Arc::default(),
        options,
        Arc::new(queue),
        Arc::default(),
        Arc::default(),
        Arc::default(),
    );
    for number in 0..PODS {
        controller.queue.add(("shop".to_owned(), format!("uid-{number}")));
    }
    settle(&controller).await;
    assert_eq!(world.evictions.load(Ordering::Relaxed), PODS, "one attempt each");
    let left = || world.stores.pods.all().len();
    let mut places = 0;
    while left() > 0 {
        places += 1;
        clock.advance(Duration::from_secs(2));
        let change = world.set_places(1);
        on_budget_change(&controller.queue, &world.stores, &controller.broker, &change);
        let before = left();
        settle(&controller).await;
        assert_eq!(left(), before - 1, "every place is used at once");
        received.lock().unwrap().clear();
    }
    let evictions = world.evictions.load(Ordering::Relaxed);
    assert!(
        evictions <= 3 * places,
        "{evictions} evictions for {places} places"
    );
}

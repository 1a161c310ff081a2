use drydock_proto::protobuf::{
    COORDINATION_V1ALPHA3_EVICTION_REQUEST, MESSAGES, META_V1_DELETE_OPTIONS, META_V1_OBJECT_META,
    META_V1_STATUS,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    out.extend_from_slice(bytes);
    out
}

fn envelope(raw: &[u8]) -> Vec<u8> {
    let type_ = [field(1, b"v1"), field(2, b"DeleteOptions")].concat();
    [
        MAGIC.to_vec(),
        field(1, &type_),
        field(2, raw),
        field(3, b""),
        field(4, b""),
    ]
    .concat()
}

#[test]
fn delete_options_are_read() {
    let raw = [
        vec![1 << 3, 0xac, 0x02],
        field(2, &field(1, b"u")),
        field(4, b"Background"),
        field(5, b"All"),
        vec![6 << 3, 0],
        field(15, b"unknown"),
        vec![14 << 3 | 5, 0, 0, 0, 0],
        vec![13 << 3 | 3, 8, 1, 12 << 3 | 3, 12 << 3 | 4, 13 << 3 | 4],
    ];
    assert_eq!(
        decode(&envelope(&raw.concat()), &META_V1_DELETE_OPTIONS, None),
        Ok(
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 300,
            "preconditions": {"uid": "u"}, "propagationPolicy": "Background", "dryRun": ["All"],
            "ignoreStoreReadErrorWithClusterBreakingPotential": false})
        )
    );
}

#[test]
fn maps_times_and_field_sets_are_read() {
    let label = |key: &[u8], value: &[u8]| field(11, &[field(1, key), field(2, value)].concat());
    let entry = [
        field(1, b"kubectl"),
        field(4, &[8, 0x80, 0xd8, 0xdb, 0xd1, 6, 16, 5]),
        field(7, &field(1, br#"{"f:spec":{}}"#)),
    ]
    .concat();
    let raw = [
        field(1, b"ns"),
        field(8, b""),
        label(b"b", b""),
        label(b"a", b"1"),
        vec![17 << 3 | 2 & 0x7f | 0x80, 1, u8::try_from(entry.len()).unwrap()],
        entry,
    ]
    .concat();
    let mut object = Map::new();
    decode_message(&raw, &META_V1_OBJECT_META, None, &mut object).unwrap();
    assert_eq!(
        Value::Object(object),
        json!({"name": "ns", "labels": {"a": "1", "b": ""}, "managedFields": [
            {"manager": "kubectl", "time": "2026-06-20T19:37:36Z", "fieldsV1": {"f:spec": {}}}]})
    );
}

#[test]
fn negative_numbers_take_ten_bytes() {
    let raw = [&[1 << 3][..], &[0xff; 9], &[1]].concat();
    let options = decode(&envelope(&raw), &META_V1_DELETE_OPTIONS, None).unwrap();
    assert_eq!(options["gracePeriodSeconds"], -1);
}

#[test]
fn malformed_messages_are_refused_with_the_texts_of_go() {
    for (bytes, expected) in [
        (Vec::new(), "empty data"),
        (
            b"{}".to_vec(),
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (MAGIC.to_vec(), "empty body"),
        (envelope(&[1 << 3]), "unexpected EOF"),
        (envelope(&[2 << 3 | 2, 9, 0]), "unexpected EOF"),
        (
            envelope(&field(1, b"text")),
            "proto: wrong wireType = 2 for field gracePeriodSeconds",
        ),
        (
            envelope(&[4 << 3, 1]),
            "proto: wrong wireType = 0 for field propagationPolicy",
        ),
        (envelope(&[15 << 3 | 7]), "proto: illegal wireType 7"),
        (envelope(&[0]), "proto: illegal tag 0"),
        (envelope(&[15 << 3 | 4]), "proto: unexpected end of group"),
        (envelope(&[15 << 3 | 3; 101]), "proto: exceeded max depth"),
        (
            envelope(&[&[1 << 3][..], &[0xff; 11]].concat()),
            "proto: integer overflow",
        ),
    ] {
        let error = decode(&bytes, &META_V1_DELETE_OPTIONS, None).unwrap_err();
        assert_eq!(error.to_string(), expected, "{bytes:?}");
    }
}

#[test]
fn zero_values_are_absent_unless_the_schema_tells_them_apart() {
    let request = drydock_proto::kinds::evictionrequest::KIND;
    let face = &request.faces[0];
    let members = [("spec", &(face.spec)()), ("status", &(face.status)())];
    let schema = Structural::for_kind(request.kind, face.version, "", &members).unwrap();
    let spec = [
        field(1, b""),
        field(2, &field(1, &[field(1, b""), field(2, b"")].concat())),
        field(3, &field(1, b"a")),
        vec![4 << 3, 0],
    ]
    .concat();
    let condition = [
        field(1, b"Evicted"),
        field(2, b""),
        field(4, b""),
        field(5, b""),
        field(6, b""),
    ];
    let status = [field(2, &condition.concat()), field(8, &[1 << 3, 0])].concat();
    let raw = [field(1, b""), field(2, &spec), field(3, &status)].concat();
    let object = decode(
        &envelope(&raw),
        &COORDINATION_V1ALPHA3_EVICTION_REQUEST,
        Some(&schema),
    );
    assert_eq!(
        object,
        Ok(
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "metadata": {},
            "spec": {"target": {"pod": {"name": "", "uid": ""}}, "requesters": [{"name": "a"}],
                "heartbeatDeadlineSeconds": 0},
            "status": {"conditions": [{"type": "Evicted", "status": "", "reason": "", "message": ""}],
                "podEvictionStatus": {"failedAPIEvictionCounter": 0}}})
        )
    );
}

/// One object must not make lists of all objects fail.
#[test]
fn a_time_beyond_the_range_is_left_out() {
    let object = |time: &str| {
        json!({"kind": "EvictionRequest", "apiVersion": "coordination.k8s.io/v1alpha3",
            "metadata": {"name": "a", "creationTimestamp": time}, "spec": {}})
    };
    let message = &COORDINATION_V1ALPHA3_EVICTION_REQUEST;
    let late = encode(&object("9999-12-31T23:59:59Z"), message).unwrap();
    let early = encode(&object("2026-01-01T00:00:00Z"), message).unwrap();
    assert!(late.len() < early.len());
}

#[test]
fn a_status_is_written_as_kubernetes_does() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "m",
        "reason": "NotFound", "details": {"name": "x", "causes": [{"field": "f"}]}, "code": 404});
    let encoded = encode(&status, &META_V1_STATUS).unwrap();
    let expected = [
        b"k8s\0".to_vec(),
        field(1, &[field(1, b"v1"), field(2, b"Status")].concat()),
        field(
            2,
            &[
                field(1, b""),
                field(2, b"Failure"),
                field(3, b"m"),
                field(4, b"NotFound"),
                field(5, &[field(1, b"x"), field(4, &field(3, b"f"))].concat()),
                vec![6 << 3, 0x94, 3],
            ]
            .concat(),
        ),
    ];
    assert_eq!(encoded, expected.concat());
    assert_eq!(decode(&encoded, &META_V1_STATUS, None), Ok(status));
}

#[test]
fn events_follow_their_length() {
    let mut out = Vec::new();
    write_event("ADDED", b"envelope", &mut out);
    let event = [field(1, b"ADDED"), field(2, &field(1, b"envelope"))].concat();
    assert_eq!(read_event(&event), Ok(("ADDED".into(), &b"envelope"[..])));
    assert_eq!(read_event(&event[..event.len() - 1]), Err(Malformed::Truncated));
    assert_eq!(
        out,
        [vec![0, 0, 0, u8::try_from(event.len()).unwrap()], event].concat()
    );
}

#[test]
fn members_of_other_types_are_errors() {
    for object in [
        json!({"code": "1"}),
        json!({"code": 1.5}),
        json!({"details": {"causes": {}}}),
        json!({"details": {"causes": [1]}}),
        json!({"message": 1}),
    ] {
        assert!(encode(&object, &META_V1_STATUS).is_err(), "{object}");
    }
    let metadata = json!({"creationTimestamp": "yesterday"});
    let error = encode(&metadata, &META_V1_OBJECT_META).unwrap_err();
    assert!(
        error.to_string().contains("ObjectMeta.creationTimestamp"),
        "{error}"
    );
}

/// The object without the fields of the message that are empty texts.
fn without_empty_texts(object: &Value, message: &'static Message) -> Value {
    use drydock_proto::protobuf::FieldKind;
    let kept = object.as_object().unwrap().iter().filter_map(|(name, value)| {
        let field = message.fields.iter().find(|field| field.name == *name).unwrap();
        let value = match (&field.kind, value) {
            (FieldKind::Message(inner), Value::Array(items)) => items
                .iter()
                .map(|item| without_empty_texts(item, inner))
                .collect(),
            (FieldKind::Message(inner), value) => without_empty_texts(value, inner),
            (FieldKind::Text | FieldKind::Bytes, value) if value == "" => return None,
            (_, value) => value.clone(),
        };
        Some((name.clone(), value))
    });
    Value::Object(kept.collect())
}

/// Any object with the fields of a message.
fn any_object(message: &'static Message) -> BoxedStrategy<Value> {
    use drydock_proto::protobuf::FieldKind;
    let fields: Vec<_> = message
        .fields
        .iter()
        .map(|field| {
            let value = match field.kind {
                FieldKind::Text | FieldKind::Bytes => any::<String>().prop_map(Value::from).boxed(),
                FieldKind::Int32 => any::<i32>().prop_map(Value::from).boxed(),
                FieldKind::Int64 => any::<i64>().prop_map(Value::from).boxed(),
                FieldKind::Boolean => any::<bool>().prop_map(Value::from).boxed(),
                FieldKind::Map => prop::collection::btree_map("[a-c]{0,2}", "[x-z]{0,2}", 1..3)
                    .prop_map(|map| json!(map))
                    .boxed(),
                FieldKind::Time => (-10_000_000_000_i64..10_000_000_000)
                    .prop_map(|second| jiff::Timestamp::from_second(second).unwrap().to_string().into())
                    .boxed(),
                FieldKind::FieldSet => Just(json!({"f:a": {}})).boxed(),
                FieldKind::Message(inner) => any_object(inner),
            };
            let value = if field.is_repeated {
                prop::collection::vec(value, 1..3).prop_map(Value::from).boxed()
            } else {
                value
            };
            (Just(field.name), prop::option::of(value))
        })
        .collect();
    fields
        .prop_map(|fields| {
            let present = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(present.collect())
        })
        .boxed()
}

proptest! {
    #[test]
    fn objects_survive_a_round_trip(
        (message, object) in (0..MESSAGES.len()).prop_flat_map(|at| (Just(MESSAGES[at]), any_object(MESSAGES[at])))
    ) {
        let encoded = encode(&object, message).unwrap();
        let mut decoded = Map::new();
        let raw = Envelope::parse(&encoded).unwrap().raw;
        decode_message(raw, message, None, &mut decoded).unwrap();
        let view = MessageView::new(raw, message).unwrap();
        let viewed: Value = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        prop_assert_eq!(viewed, without_empty_texts(&object, message));
        prop_assert_eq!(Value::Object(decoded), object);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_decode(&bytes);
    }
}

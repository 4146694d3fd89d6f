// Package identity tests who may do what on a real API server, and what the API server accepts.
//
//   - What each identity may do under the manifests, and what it may not, with the layer that refuses it. Without the layer the act
//     succeeds, so no act is refused for another reason.
//   - The coordinator's credential: it is minted, renews itself, expires and is refused. What a process serves: metrics and health.
//   - The schema of DisruptionPolicy: what it refuses, its defaults, what `kubectl get` prints. policy.Compile reads each
//     counter-example as well, so that the two agree: an object may be older than the schema, and the schema cannot check everything.
//     What policies do is tested in packages rollout and turns.
package identity

package controlplane

// EtcdEndpoint returns etcd's endpoint for clients, without TLS: "unix://" and the path of its socket. It stays the same when etcd is
// restarted. Use it to see every write in the order of the store, without the API server and without any proxy of the test.
func (cp *ControlPlane) EtcdEndpoint() string { return "unix://" + cp.etcdSocket() }

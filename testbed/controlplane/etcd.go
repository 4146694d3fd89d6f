package controlplane

// EtcdEndpoint is what etcd listens on for clients, without TLS: "unix://" and the path of its socket. It stays the same when etcd is
// restarted. It is for who has to see every write in the one order of the store, past the API server and whatever a test puts
// before that.
func (cp *ControlPlane) EtcdEndpoint() string { return "unix://" + cp.etcdSocket() }

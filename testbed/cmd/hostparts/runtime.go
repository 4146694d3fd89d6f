package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// forgetEvery is how often the recorded calls of Kubernetes' fake are dropped. Otherwise the fake would keep all of
// them.
const forgetEvery = time.Minute

// imageSize is an arbitrary size: the kubelet treats an image without a size as broken.
const imageSize = 1 << 20 // bytes

// runtime is Kubernetes' own fake container runtime. It records sandboxes and containers, and runs nothing: a container
// counts as running from its start until its stop. A restart drops all records, like a reboot with real containers.
// Unlike the fake, this runtime supports containers that take time to stop.
type runtime struct {
	*fake.RemoteRuntime
}

// runRuntime serves the container runtime interface on a Unix socket until ctx ends.
func runRuntime(ctx context.Context, socket string) error {
	rt := runtime{fake.NewFakeRemoteRuntime()}
	rt.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}
	rt.ImageService.SetFakeImageSize(imageSize)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, rt)
	runtimeapi.RegisterImageServiceServer(server, rt)
	defer context.AfterFunc(ctx, server.Stop)()
	go rt.forget(ctx)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		return fmt.Errorf("telling systemd: %w", err)
	}
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// ContainerStatus sets a log path, which the fake leaves empty. For a container without one the kubelet removes `*`
// relative to its working directory, the host's root, and so deletes the host's /bin.
func (rt runtime) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	resp, err := rt.RemoteRuntime.ContainerStatus(ctx, req)
	if err != nil {
		return nil, err
	}
	resp.Status.LogPath = "/var/log/pods/" + req.ContainerId + "/0.log"
	return resp, nil
}

// StopContainer takes as long as the pod's annotation says, but not longer than the kubelet allows. The journal shows
// the order of the stops.
func (rt runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	name, stopsAfter := rt.running(req.ContainerId)
	if name != "" {
		fmt.Fprintf(os.Stderr, "stopping container %s, grace period %d s\n", name, req.Timeout)
	}
	if wait := min(stopsAfter, time.Duration(req.Timeout)*time.Second); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return rt.RemoteRuntime.StopContainer(ctx, req)
}

// running returns the name of a running container with its pod's, and how long it takes to stop. The name is "" if the
// container does not run.
func (rt runtime) running(container string) (name string, stopsAfter time.Duration) {
	rt.RuntimeService.Lock()
	defer rt.RuntimeService.Unlock()
	c := rt.RuntimeService.Containers[container]
	if c == nil || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return "", 0
	}
	pod := rt.RuntimeService.Sandboxes[c.SandboxID]
	if pod == nil {
		return "", 0
	}
	name = fmt.Sprintf("%s of pod %s/%s", c.Metadata.GetName(), pod.Metadata.GetNamespace(), pod.Metadata.GetName())
	// Without an annotation, or with one that KWOK would not understand either, it stops at once.
	stopsAfter, _ = time.ParseDuration(pod.Annotations[controlplane.StopsAfterAnnotation])
	return name, stopsAfter
}

func (rt runtime) forget(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			rt.RuntimeService.Lock()
			rt.RuntimeService.Called = nil
			rt.RuntimeService.Unlock()
			rt.ImageService.Lock()
			rt.ImageService.Called = nil
			rt.ImageService.Unlock()
		}
	}
}

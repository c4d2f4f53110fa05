package servers

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
)

// A call of package interop ends the process when it fails, with a line that says what went wrong.
var interopCalls = map[string]func(context.Context, testgrpc.TestServiceClient){
	"empty_unary":                 func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoEmptyUnaryCall(ctx, c) },
	"large_unary":                 func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoLargeUnaryCall(ctx, c) },
	"client_streaming":            func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoClientStreaming(ctx, c) },
	"server_streaming":            func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoServerStreaming(ctx, c) },
	"ping_pong":                   func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoPingPong(ctx, c) },
	"empty_stream":                func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoEmptyStream(ctx, c) },
	"timeout_on_sleeping_server":  func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoTimeoutOnSleepingServer(ctx, c) },
	"cancel_after_begin":          func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCancelAfterBegin(ctx, c) },
	"cancel_after_first_response": func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCancelAfterFirstResponse(ctx, c) },
	"custom_metadata":             func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoCustomMetadata(ctx, c) },
	"status_code_and_message":     func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoStatusCodeAndMessage(ctx, c) },
	"special_status_message":      func(ctx context.Context, c testgrpc.TestServiceClient) { interop.DoSpecialStatusMessage(ctx, c) },
	"pick_first_unary":            interop.DoPickFirstUnary,
	"orca_per_rpc":                interop.DoORCAPerRPCTest,
}

const grpcDoes = "the interop calls empty_unary, large_unary, client_streaming, server_streaming, ping_pong, empty_stream, timeout_on_sleeping_server, " +
	"cancel_after_begin, cancel_after_first_response, custom_metadata, status_code_and_message, special_status_message, unimplemented_method, " +
	"unimplemented_service, pick_first_unary, orca_per_rpc, one by one and at once; rpc_soak and channel_soak; GracefulStop"

func TestGRPC(t *testing.T)    { grpcRow("gRPC", nil).run(t) }
func TestGRPCTLS(t *testing.T) { grpcRow("gRPC, TLS", newAuthority(t, 1)).run(t) }

// nameServer has the server name itself to those who ask, as pick_first_unary does.
func nameServer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if r, ok := req.(*testgrpc.SimpleRequest); ok && r.FillServerId && err == nil {
		resp.(*testgrpc.SimpleResponse).ServerId = "the server"
	}
	return resp, err
}

// holdEmpty answers a stream of requests that had none when it is cancelled: that is what cancel_after_begin does, and gRPC does not say that
// its cancellation is faster than the answer. On a slow machine it is not, with plain TCP either.
func holdEmpty(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &heldStream{ServerStream: ss})
}

type heldStream struct {
	grpc.ServerStream
	began bool
}

func (s *heldStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if _, requests := m.(*testgrpc.StreamingInputCallRequest); requests && err == io.EOF && !s.began {
		<-s.Context().Done()
		return s.Context().Err()
	}
	s.began = true
	return err
}

func grpcRow(name string, ca *authority) row {
	return row{
		name: name, modules: []string{"google.golang.org/grpc"}, does: grpcDoes,
		serve: func(t *testing.T, ln net.Listener) {
			metrics := orca.NewServerMetricsRecorder()
			options := []grpc.ServerOption{orca.CallMetricsServerOption(metrics), grpc.UnaryInterceptor(nameServer),
				grpc.StreamInterceptor(holdEmpty)}
			if ca != nil {
				cert := ca.issue(t, "server")
				options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
			}
			s := grpc.NewServer(options...)
			testgrpc.RegisterTestServiceServer(s, interop.NewTestServer(interop.NewTestServerOptions{MetricsRecorder: metrics}))
			check(t, orca.Register(s, orca.ServiceOptions{ServerMetricsProvider: metrics}))
			served := make(chan error, 1)
			go func() { served <- s.Serve(ln) }()
			t.Cleanup(func() {
				s.GracefulStop()
				check(t, <-served)
			})
		},
		use: func(t *testing.T, n *network) {
			creds := insecure.NewCredentials()
			if ca != nil {
				creds = credentials.NewClientTLSFromCert(ca.pool, "server")
			}
			connect := func() *grpc.ClientConn {
				cc, err := grpc.NewClient("passthrough:///"+n.addr, grpc.WithContextDialer(n.DialAddr), grpc.WithTransportCredentials(creds),
					grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"test_backend_metrics_load_balancer":{}}]}`))
				check(t, err)
				return cc
			}
			cc := connect()
			defer func() { check(t, cc.Close()) }()
			ctx := within(t)
			tc := testgrpc.NewTestServiceClient(cc)
			for _, call := range interopCalls {
				call(ctx, tc)
			}
			interop.DoUnimplementedMethod(ctx, cc)
			interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
			var all []func(context.Context, testgrpc.TestServiceClient)
			for name, call := range interopCalls {
				if name != "orca_per_rpc" { // the report is the server's, not the call's
					all = append(all, call, call)
				}
			}
			together(t, len(all), func(i int) error { all[i](ctx, tc); return nil })

			soak := interop.SoakTestConfig{
				RequestSize: 271828, ResponseSize: 314159, PerIterationMaxAcceptableLatency: patience, OverallTimeout: patience,
				ServerAddr: n.addr, NumWorkers: 4, Iterations: 40, MinTimeBetweenRPCs: time.Nanosecond,
				ChannelForTest: func() (*grpc.ClientConn, func()) { return cc, func() {} },
			}
			interop.DoSoakTest(ctx, soak)
			soak.ChannelForTest = func() (*grpc.ClientConn, func()) {
				own := connect()
				return own, func() { own.Close() }
			}
			soak.Iterations = 12
			interop.DoSoakTest(ctx, soak)
		},
	}
}

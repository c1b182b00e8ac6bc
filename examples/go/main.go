// Publish three messages and consume them in a group, on a stream, settling each.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example.com/shipping/goqueue/v1"
)

func main() {
	address := "127.0.0.1:9000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20))) // for topics with large messages
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	queue := pb.NewGoQueueClient(connection)
	ctx := context.Background()
	if err := publish(ctx, queue, "first", "second", "third"); err != nil {
		log.Fatal(err)
	}
	if err := consume(ctx, queue, 3); err != nil {
		log.Fatal(err)
	}
}

func publish(ctx context.Context, queue pb.GoQueueClient, values ...string) error {
	_, err := queue.CreateTopic(ctx, &pb.CreateTopicRequest{Name: proto.String("letters")})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return err
	}
	for _, value := range values {
		placed, err := queue.Publish(ctx, &pb.PublishRequest{
			Topic: proto.String("letters"),
			Key:   []byte("customer-7"),
			Value: []byte(value),
			Acks:  proto.String("all"),
		})
		if err != nil {
			return err
		}
		fmt.Println("published", placed.GetMessageId(), placed.GetDurability())
	}
	return nil
}

func consume(ctx context.Context, queue pb.GoQueueClient, wanted int) error {
	stream, err := queue.Subscribe(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&pb.SubscribeRequest{
		Subscription: &pb.Subscription{Join: &pb.JoinGroupRequest{
			Group:    proto.String("postmen"),
			ClientId: proto.String("go"),
			Topics:   []string{"letters"},
		}},
		Credit: proto.Int64(100), // so many messages may come before more is given
	})
	if err != nil {
		return err
	}
	for done := 0; ; {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) { // the broker has answered everything, and the member has left the group
			return nil
		}
		if err != nil {
			return err
		}
		if refused := reply.GetRefused(); refused != nil {
			return fmt.Errorf("refused: %s", refused.GetError())
		}
		var handles []string
		for _, message := range reply.GetBatch().GetMessages() {
			fmt.Println("received", string(message.GetValue()))
			handles = append(handles, message.GetReceiptHandle())
		}
		if len(handles) == 0 {
			continue
		}
		err = stream.Send(&pb.SubscribeRequest{
			Ack:    &pb.AckRequest{ReceiptHandles: handles},
			Credit: proto.Int64(int64(len(handles))),
		})
		if err != nil {
			return err
		}
		if done += len(handles); done >= wanted {
			if err := stream.CloseSend(); err != nil { // no more to say: leave the group
				return err
			}
		}
	}
}

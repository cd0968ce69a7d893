import type { ProxyContext } from '../context.js'
import type { ClientAnswer, ClientRequest } from '../http/client.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import { Exchange } from './exchange.js'
import { isForStream, PageWait } from './page-wait.js'

/** What serves a request, other than one for a tunnel. */
export function createExchange(
  context: ProxyContext,
  connection: ClientConnection,
  req: ClientRequest,
  res: ClientAnswer,
): PipelinedRequest {
  if (isForStream(context, req)) return new PageWait(context, connection, req, res)
  return new Exchange(context, connection, req, res)
}

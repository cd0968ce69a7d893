FROM node:22-alpine AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts
COPY . .
RUN npm run build && npm ci --omit=dev --ignore-scripts

FROM node:22-alpine
# Node as process 1 would neither pass on signals nor reap children.
RUN apk add --no-cache tini
WORKDIR /app
ENV NODE_ENV=production
COPY --from=build /app/package.json /app/shaper.config.json ./
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/bin ./bin
COPY --from=build /app/dist ./dist
USER node
EXPOSE 8080
# That it accepts is enough: a request would cost somebody's limit and reach the upstream.
HEALTHCHECK --interval=10s --timeout=3s --start-period=2s \
  CMD node -e "require('net').connect(8080, '127.0.0.1').once('connect', () => process.exit(0)).once('error', () => process.exit(1))"
ENTRYPOINT ["/sbin/tini", "--", "node", "bin/shaper.js"]
CMD ["start"]

import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
// every 2 s the answers of one instance of 4 are lost for 260 ms
const stack=[limits(200,100,'everyone')]
const s = await simulate({stack,count:4,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'poisson',ms:4/(1.3*.2)}}))})
await s.run(10000); let t=10000, rel=s.releases.length
const avg=async(ms)=>{let sum=0,n=0;for(const e=t+ms;t<e;){t+=50;await s.run(t);sum+=s.waiting;n++}const c=s.releases.length-rel;rel=s.releases.length;return `waiting ${(sum/n).toFixed(0)} released ${(c*1000/ms).toFixed(1)}/s`}
console.log('before', await avg(5000))
for(let g=0;g<4;g++){ for(let k=0;k<15;k++){const i=k%4; s.connections[i].down=true;t+=260;await s.run(t);s.connections[i].down=false;t+=1740;await s.run(t)} rel=s.releases.length; console.log('after',(g+1)*15,'blips', await avg(2000)) }
console.log('no blips for 60 s more'); t+=60000; await s.run(t); rel=s.releases.length; console.log(await avg(5000))
